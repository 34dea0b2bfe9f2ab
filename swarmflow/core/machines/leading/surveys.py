"""Surveys of links: where paths limit the swarm, a newcomer measures its links, and they decide on its stage."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import median

from swarmflow.core.machines.leading import planning
from swarmflow.core.machines.leading.grants import grant
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.membership.placement import paths_limit, place
from swarmflow.core.protocol.actions import Action, Connect, Log, Send
from swarmflow.core.protocol.messages import LinkGains, MeasureLinks
from swarmflow.core.protocol.messages.checks import FASTEST, SECONDS_MAX, SLOWEST
from swarmflow.core.protocol.messages.membership import SURVEYED_MAX
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import Member, ProcessId
from swarmflow.core.routing.link_rates import plausible_rates
from swarmflow.core.routing.prober import SHARE, large

PATIENCE_S = 60.0  # after which a newcomer that has reported nothing is placed without its links
PROBING_S = 20.0  # which the probes of a newcomer should take: it gives up a while later
ROUND_TRIP_S = 0.1  # of a probe, beside its transfer
KNOWN_MIN = 0.5  # share of the links between the surveyed peers of neighbouring stages that has to be known


def begin(leader: LeaderState, entry: MemberRecord, now: float) -> list[Action]:
    """Have a newcomer measure its links, if they can matter; else return nothing."""
    plan = leader.plan
    if entry.wish >= 0 or plan.stages < 2:
        return []
    if leader.plans is not None:
        actions = planning.survey(leader, entry, now) if planning.all_served(leader, entry) else []
    elif large(plan.boundary_bytes) and paths_limit(leader.membership):
        actions = _survey(leader, entry, now)
    else:
        actions = []
    if actions:
        leader.membership.mark(entry, MemberPhase.MEASURING)
        text = f"peer {entry.process} measures its links to others, before it is granted a stage"
        actions.append(Log("info", text, EventKind.JOINED, entry.process))
    return actions


def _survey(leader: LeaderState, entry: MemberRecord, now: float) -> list[Action]:
    """Have a newcomer measure its links, if enough is known of the others'."""
    asked = _asked(leader, entry)
    if asked is None:
        return []
    entry.survey_until_s = now + PATIENCE_S
    return [Connect((entry.member,)), Send(entry.process, asked)]


def on_link_gains(leader: LeaderState, known: MemberRecord, message: LinkGains, now: float) -> list[Action]:
    """Grant a newcomer the stage that its links and its power help most, or what is planned by the links."""
    if message.survey != known.surveys:
        return []
    if leader.plans is not None:
        return planning.on_links(leader, known, message, now)
    if known.phase is not MemberPhase.MEASURING:
        return []
    if SLOWEST <= message.rate <= FASTEST:
        known.measured_rate = max(known.measured_rate, message.rate)
    stage, reason = place(leader.membership, known.wish, known.power, message.gains, known.unfit)
    return grant(leader, known, stage, reason)


def _asked(leader: LeaderState, entry: MemberRecord) -> MeasureLinks | None:
    """Return what a process is to measure, and what it has to know of the links; None: too little is known of these.

    As many peers of each stage, at most those whom it can probe in time: one that is left out counts as another one of
    its stage does.
    """
    most = _probed_in_time(leader, entry) // leader.plan.stages
    members: list[Member] = []
    places: list[dict[ProcessId, int]] = []
    for stage in range(leader.plan.stages):
        found = [e.member for e in leader.membership.ready(stage, leader.version) if e is not entry]
        chosen = _some(found, max(1, most), entry.process)
        if not chosen:
            return None
        share = len(found) / len(chosen)
        places.append({member.process: len(members) + number for number, member in enumerate(chosen)})
        held_max = leader.plan.microbatches  # more are never in flight
        members += [replace(m, capacity=min(held_max, math.ceil(m.capacity * share))) for m in chosen]
    links: list[tuple[int, int, float]] = []
    for here, there in pairwise(places):
        for sender, place_of_sender in here.items():
            report = leader.membership.known[sender].rates
            rates = plausible_rates(report) if report is not None else {}
            for receiver, rate in rates.items():
                if receiver in there:
                    seconds = min(leader.plan.boundary_bytes / rate, SECONDS_MAX)
                    links.append((place_of_sender, there[receiver], seconds))
    pairs = sum(len(here) * len(there) for here, there in pairwise(places))
    if len(links) < KNOWN_MIN * pairs:
        return None
    entry.surveys += 1
    return MeasureLinks(entry.surveys, tuple(members), tuple(links))


def _probed_in_time(leader: LeaderState, entry: MemberRecord) -> int:
    """Return how many peers a newcomer can probe, over links like those of others, or as fast as it says of its own."""
    reports = [e.rates for e in leader.membership.peers() if e.rates is not None][:SURVEYED_MAX]
    rates = [rate for report in reports for rate in plausible_rates(report).values()]
    if not rates:
        return SURVEYED_MAX
    rate = min(median(rates), entry.stated_rate or FASTEST)
    return min(SURVEYED_MAX, int(PROBING_S / (ROUND_TRIP_S + leader.plan.boundary_bytes / SHARE / rate)))


def _some(members: list[Member], most: int, newcomer: ProcessId) -> list[Member]:
    """Return at most so many of a stage's peers: others for each newcomer."""
    if len(members) <= most:
        return members
    return sorted(Random(str(newcomer)).sample(members, most))
