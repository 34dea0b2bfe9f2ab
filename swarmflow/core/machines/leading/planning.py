"""Placement by a plan of the links: peers measure them, a plan is worked out, and peers move where it pays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from swarmflow.core.machines.leading.grants import grant
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.membership.placement import place
from swarmflow.core.membership.rebalance import Move
from swarmflow.core.protocol.actions import Action, Connect, Log, PlanStages, Send
from swarmflow.core.protocol.events import StagesPlanned
from swarmflow.core.protocol.messages import LinkGains, MeasureLinks
from swarmflow.core.protocol.messages.membership import SURVEYED_MAX
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import ProcessId

AGED_S = 600.0  # after which a peer measures its links again
SURVEYING = 16  # of so many peers one may measure at a time
PATIENCE_S = 60.0  # for a survey, and for a newcomer's stage
PERIOD_S = 30.0  # between two plans that no newcomer waits for
ANSWER_S = 300.0  # after which a plan is asked for anew
GAIN = 0.8  # to this share of what they are the computing and the exchanges of a step have to fall, or nobody moves
# Of what its sums take: weights and two moments in fp32 beside sums of a byte a number at least.
STATE = 12
BY_LINKS = "as planned by the links"
PLACED = (MemberPhase.READY, MemberPhase.LOADING)
PLANNED = (*PLACED, MemberPhase.MEASURING)


def all_served(leader: LeaderState, but: MemberRecord) -> bool:
    """Return whether each stage has a peer, or one that loads it, without this one."""
    here = (entry for entry in leader.membership.peers() if entry is not but and entry.phase in PLACED)
    return len({entry.member.stage for entry in here}) == leader.plan.stages


def survey(leader: LeaderState, entry: MemberRecord, now: float) -> list[Action]:
    """Have a peer measure its links to all others, or to so many of them."""
    assert leader.plans is not None
    others = [e.member for e in leader.membership.peers() if e is not entry and e.phase in PLANNED]
    if not others:
        return []
    some = sorted(Random(str(entry.process)).sample(others, min(len(others), SURVEYED_MAX)))
    entry.surveys += 1
    entry.survey_until_s = leader.plans.surveying[entry.process] = now + PATIENCE_S
    return [Connect((entry.member,)), Send(entry.process, MeasureLinks(entry.surveys, tuple(some), ()))]


def on_links(leader: LeaderState, known: MemberRecord, message: LinkGains, now: float) -> list[Action]:
    """Record the links of a peer. A newcomer is granted a stage with the next plan."""
    plans = leader.plans
    assert plans is not None
    plans.surveying.pop(known.process, None)
    known.surveyed_s = now
    plans.due |= plans.links.learn(known.process, message.links)
    if known.phase is not MemberPhase.MEASURING:
        return []
    known.survey_until_s = now + PATIENCE_S
    plans.due = True
    return _ask(leader, now)


def see(leader: LeaderState, now: float) -> list[Action]:
    """Have the links measured that were not, or long ago; and a plan made where something has changed."""
    plans = leader.plans
    if plans is None:
        return []
    membership = leader.membership
    entries = [entry for entry in membership.peers() if entry.phase in PLANNED]
    for process in [process for process, until_s in plans.surveying.items() if now >= until_s]:
        del plans.surveying[process]
        if process in membership.known:
            membership.known[process].surveyed_s = now
    plans.links.forget([process for process in plans.links.peers if process not in membership.known])
    plans.due |= plans.peers != {entry.process for entry in entries}
    actions: list[Action] = []
    ready = [entry for entry in entries if entry.phase is MemberPhase.READY and entry.process not in plans.surveying]
    for entry in sorted(ready, key=lambda entry: entry.surveyed_s)[: 1 + len(entries) // SURVEYING]:
        at_once = len(plans.surveying) <= len(entries) // SURVEYING
        if at_once and now - entry.surveyed_s > AGED_S:
            actions += survey(leader, entry, now)
    return actions + _ask(leader, now)


def _ask(leader: LeaderState, now: float) -> list[Action]:
    """Ask for a plan, if one is due and enough is known; else place the newcomers without one."""
    plans, membership = leader.plans, leader.membership
    assert plans is not None
    if plans.asked and now - plans.asked_s < ANSWER_S:
        return []
    entries = [entry for entry in membership.peers() if entry.phase in PLANNED and not entry.draining]
    entries = [entry for entry in entries if entry.phase is not MemberPhase.MEASURING or entry.surveyed_s > -math.inf]
    newcomers = [entry for entry in entries if entry.phase is MemberPhase.MEASURING]
    if not plans.due or (not newcomers and now - plans.asked_s < PERIOD_S):
        return []
    peers = [entry.process for entry in entries]
    served = all(membership.served(stage, leader.version) for stage in range(leader.plan.stages))
    if not served or not plans.links.suffices(peers):
        return _place(leader, newcomers, {})
    number = plans.begin(peers, now)
    serves = tuple(-1 if entry in newcomers else entry.member.stage for entry in entries)
    fixed = tuple(not may_move(entry) and entry not in newcomers for entry in entries)
    sums = leader.plan.reduced_bytes or (0,) * leader.plan.stages
    return [
        PlanStages(
            number,
            *plans.links.tables(peers),
            serves,
            fixed,
            leader.plan.microbatches,
            leader.plan.boundary_bytes,
            sums,
        )
    ]


def on_planned(leader: LeaderState, event: StagesPlanned, now: float) -> list[Action]:
    """Follow a plan if it pays: newcomers at once, the others move between steps."""
    plans, membership = leader.plans, leader.membership
    peers = plans.take(event.number) if plans is not None else ()
    if plans is None or len(peers) != len(event.stages):
        return []
    target = {process: stage for process, stage in zip(peers, event.stages, strict=True) if process in membership.known}
    newcomers = [e for process in target if (e := membership.known[process]).phase is MemberPhase.MEASURING]
    moving = [
        e
        for process, stage in target.items()
        if (e := membership.known[process]) not in newcomers and e.member.stage != stage
    ]
    actions: list[Action] = []
    if not moving or _pays(leader, target, len(moving), event):
        plans.target = target
        text = f"planned {len(target)} peers by their links: {event.planned_s:.3g} s of exchanges a step"
        if moving:
            text += f" instead of {event.current_s:.3g} s, {len(moving)} of them move"
            actions.append(Log("info", text, EventKind.MOVED))
    elif set(plans.target) != set(target):
        plans.target = {}  # it was for others
    return [*actions, *_place(leader, newcomers, plans.target), *_ask(leader, now)]


def _place(leader: LeaderState, newcomers: Sequence[MemberRecord], target: Mapping[ProcessId, int]) -> list[Action]:
    """Grant newcomers the planned stages; those that have none as everywhere."""
    actions: list[Action] = []
    for entry in newcomers:
        if entry.process in target:
            stage, reason = target[entry.process], BY_LINKS
        else:
            stage, reason = place(leader.membership, entry.wish, entry.power)
        actions += grant(leader, entry, stage, reason)
    return actions


def _pays(leader: LeaderState, target: Mapping[ProcessId, int], moves: int, event: StagesPlanned) -> bool:
    """Return whether a plan gains enough, and more than the moves cost in what is left of the run."""
    membership = leader.membership
    placed = [entry for entry in membership.peers() if entry.phase in PLACED]
    now_s = event.current_s + _computing_s(leader, {entry.process: entry.member.stage for entry in placed})
    then_s = event.planned_s + _computing_s(leader, target)
    rate = max((entry.measured_rate for entry in placed), default=0.0)
    state_bytes = STATE * max(leader.plan.reduced_bytes, default=0)
    moves_s = moves * state_bytes / rate if rate else 0.0
    left = leader.settings.steps - leader.version
    return then_s < GAIN * now_s and moves_s < left * (now_s - then_s)


def _computing_s(leader: LeaderState, stages: Mapping[ProcessId, int]) -> float:
    """Return the seconds of a step that the busiest stage computes, with the peers at these stages."""
    plan, known = leader.plan, leader.membership.known
    speeds = [0.0] * plan.stages
    for process, stage in stages.items():
        speeds[stage] += known[process].power.speed if process in known else 0.0
    costs = plan.costs or (1.0,) * plan.stages
    return max(
        plan.microbatches * cost / speed if speed else math.inf for cost, speed in zip(costs, speeds, strict=True)
    )


def moves(leader: LeaderState) -> list[Move]:
    """Return the moves to the stages that are planned, between two steps; half of a stage's peers stay each time."""
    plans, membership, found = leader.plans, leader.membership, list[Move]()
    assert plans is not None
    planned = Counter(plans.target.values())
    for stage in range(leader.plan.stages):
        ready = membership.ready(stage, leader.version)
        going = [entry for entry in ready if may_move(entry) and plans.target.get(entry.process, stage) != stage]
        leave = max(0, len(ready) - max(1, math.ceil(planned[stage] / 2)))
        found += [Move(entry.process, plans.target[entry.process], BY_LINKS) for entry in going[:leave]]
    return found


def may_move(entry: MemberRecord) -> bool:
    """Return whether a peer leaves its stage to the run."""
    return entry.wish < 0 and entry.rebalance_s > 0
