"""Placement by a plan of the links: peers measure them, a plan is worked out, and peers move where it pays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from random import Random

from swarmflow.core.machines.leading.grants import grant
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.machines.leading.stage_plans import PAUSE
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.membership.placement import place, room
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
    """Record the links of a peer that was asked. A newcomer is granted a stage with the next plan."""
    plans = leader.plans
    assert plans is not None
    if plans.surveying.pop(known.process, None) is None:
        return []
    known.surveyed_s = now
    plans.learn(known.process, [link for link in message.links if link[0] in leader.membership.known])
    if known.phase is not MemberPhase.MEASURING:
        return []
    known.survey_until_s = now + PATIENCE_S
    plans.due = True
    return _ask(leader, now)


def see(leader: LeaderState, now: float) -> list[Action]:
    """Have the links measured that were not, or long ago; and a plan made where something has changed."""
    plans, known = leader.plans, leader.membership.known
    if plans is None:
        return []
    for process in [process for process, until_s in plans.surveying.items() if now >= until_s]:
        del plans.surveying[process]
        if process in known and known[process].phase is MemberPhase.READY:
            known[process].surveyed_s = now
    if gone := [process for process in (*plans.links.peers, *plans.target) if process not in known]:
        plans.links.keep(known)
        plans.target = {process: stage for process, stage in plans.target.items() if process not in gone}
    entries = _planned(leader)
    plans.due |= plans.peers != {entry.process for entry in entries}
    actions: list[Action] = []
    at_once = 1 + len(entries) // SURVEYING - len(plans.surveying)
    aged = [e for e in entries if e.phase is MemberPhase.READY and now - e.surveyed_s > AGED_S]
    free = (entry for entry in sorted(aged, key=lambda e: e.surveyed_s) if entry.process not in plans.surveying)
    for entry in islice(free, max(0, at_once)):
        actions += survey(leader, entry, now)
    return actions + _ask(leader, now)


def _planned(leader: LeaderState) -> list[MemberRecord]:
    """Return the peers that a plan is about: those that mean to stay, and the newcomers that know their links."""
    entries = (entry for entry in leader.membership.peers() if entry.phase in PLANNED and not entry.draining)
    return [e for e in entries if e.phase is not MemberPhase.MEASURING or e.surveyed_s > -math.inf]


def _ask(leader: LeaderState, now: float) -> list[Action]:
    """Ask for a plan, if one is due and enough is known; else place the newcomers without one.

    Until nearly all have measured their links, only newcomers are placed by them: each plan would contradict the last.
    """
    plans, membership = leader.plans, leader.membership
    assert plans is not None
    if not plans.due or (plans.asked and now - plans.asked_s < ANSWER_S):
        return []
    entries = _planned(leader)
    peers = [entry.process for entry in entries]
    newcomers = [entry for entry in entries if entry.phase is MemberPhase.MEASURING]
    covered = plans.links.covers(peers)
    early = now - plans.asked_s < max(PERIOD_S, PAUSE * plans.took_s)
    if not newcomers and (early or not covered):
        return []
    served = all(membership.served(stage, leader.version) for stage in range(leader.plan.stages))
    links = plans.links.between(peers)
    if not served or not links or not plans.links.touches(peers):
        return _place(leader, newcomers, {})
    for entry in newcomers:
        entry.survey_until_s = now + ANSWER_S
    plan = leader.plan
    return [
        PlanStages(
            plans.begin(peers, now),
            links,
            tuple(-1 if entry.phase is MemberPhase.MEASURING else entry.member.stage for entry in entries),
            tuple(entry.phase in PLACED and not (covered and may_move(entry) and not entry.unfit) for entry in entries),
            plan.microbatches,
            plan.boundary_bytes,
            plan.reduced_bytes or (0,) * plan.stages,
        )
    ]


def on_planned(leader: LeaderState, event: StagesPlanned, now: float) -> list[Action]:
    """Follow a plan if it pays: newcomers at once, the others move between steps."""
    plans, known = leader.plans, leader.membership.known
    peers = plans.take(event.number, now) if plans is not None else ()
    if plans is None or not peers:
        return []
    newcomers = [known[p] for p in peers if p in known and known[p].phase is MemberPhase.MEASURING]
    if not len(peers) == len(event.stages) == len(event.staying):
        return [*_place(leader, newcomers, {}), *_ask(leader, now)]
    both = (dict(zip(peers, stages, strict=True)) for stages in (event.stages, event.staying))
    target, staying = ({process: stage for process, stage in each.items() if process in known} for each in both)
    placed = {p: known[p].member.stage for p in target if known[p].phase in PLACED}
    moves = sum(target[process] != stage for process, stage in placed.items())
    actions: list[Action] = []
    if not moves or _pays(leader, target, staying, moves, event):
        plans.target = target
        if moves:
            cost = f"{event.planned_s:.3g} s of exchanges a step instead of {event.staying_s:.3g} s"
            text = f"planned {len(target)} peers by their links: {cost}, {moves} of them move"
            actions.append(Log("info", text, EventKind.MOVED))
    else:
        target = staying
    return [*actions, *_place(leader, newcomers, target), *_ask(leader, now)]


def _place(leader: LeaderState, newcomers: Sequence[MemberRecord], target: Mapping[ProcessId, int]) -> list[Action]:
    """Grant newcomers the stages that their links are good for; those that have none as everywhere."""
    actions: list[Action] = []
    for entry in newcomers:
        planned = target.get(entry.process)
        if planned is not None and planned not in entry.unfit:
            stage, reason = planned, BY_LINKS
        else:
            stage, reason = place(leader.membership, entry.wish, entry.power, unfit=entry.unfit)
        actions += grant(leader, entry, stage, reason)
    return actions


def _pays(
    leader: LeaderState,
    target: Mapping[ProcessId, int],
    staying: Mapping[ProcessId, int],
    moves: int,
    event: StagesPlanned,
) -> bool:
    """Return whether a plan gains enough, and more than the moves cost in what is left of the run."""
    stay_s, then_s = event.staying_s + _computing_s(leader, staying), event.planned_s + _computing_s(leader, target)
    rate = max((entry.measured_rate for entry in leader.membership.peers()), default=0.0)
    state_bytes = STATE * max(leader.plan.reduced_bytes, default=0)
    moves_s = moves * state_bytes / rate if rate else 0.0
    left = leader.settings.steps - leader.version
    return then_s < GAIN * stay_s and moves_s < left * (stay_s - then_s)


def _computing_s(leader: LeaderState, stages: Mapping[ProcessId, int]) -> float:
    """Return the seconds of a step that the busiest stage computes, with the peers at these stages."""
    plan, known = leader.plan, leader.membership.known
    speeds = [0.0] * plan.stages
    for process, stage in stages.items():
        speeds[stage] += known[process].power.speed
    costs = plan.costs or (1.0,) * plan.stages
    return max(
        plan.microbatches * cost / speed if speed else math.inf for cost, speed in zip(costs, speeds, strict=True)
    )


def moves(leader: LeaderState, now: float) -> list[Move]:
    """Return the moves to the stages that are planned, between two steps.

    Half of a stage's peers stay each time, no more go to one than may load it, and each peer stays for its period.
    """
    plans, membership, found = leader.plans, leader.membership, list[Move]()
    assert plans is not None
    planned = Counter(plans.target.values())
    rooms = [room(membership, stage) for stage in range(leader.plan.stages)]
    for stage in range(leader.plan.stages):
        ready = membership.ready(stage, leader.version)
        leave = max(0, len(ready) - max(1, math.ceil(planned[stage] / 2)))
        for entry in ready:
            there = plans.target.get(entry.process, stage)
            rested = may_move(entry) and entry.may_serve(there) and entry.rebalance_s <= now - entry.settled_s
            if there != stage and rested and leave > 0 and rooms[there] > 0:
                leave, rooms[there] = leave - 1, rooms[there] - 1
                found.append(Move(entry.process, there, BY_LINKS))
    return found


def may_move(entry: MemberRecord) -> bool:
    """Return whether a peer leaves its stage to the run."""
    return entry.wish < 0 and entry.rebalance_s > 0
