"""Surveys of links, which the leader has newcomers make; and the answers of those to whom they measure."""

from __future__ import annotations

from random import Random

from swarmflow.core.machines.serving.peer_state import PeerState, release
from swarmflow.core.protocol.actions import Action, Connect, Log, Send
from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.messages import MeasureLinks, Probe, Probed
from swarmflow.core.protocol.types import NO_EPOCH
from swarmflow.core.routing.link_survey import LinkSurvey
from swarmflow.core.routing.prober import Prober

# Of a probe by which stages are planned, where boundary tensors are small: 52 ms at 40 Mb/s, well above what a busy
# process takes to answer, and more than most limiters let through at once.
PLANNING_BYTES = 1 << 18
MEASURING_S = 30.0  # after which what has been measured has to do


def on_measure_links(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Begin a survey: before this peer has a stage, or while it serves one."""
    message = event.message
    assert isinstance(message, MeasureLinks)
    if any(not 0 <= m.stage < peer.plan.stages for m in message.members):
        return []
    others = [member for member in message.members if member.process != peer.me]
    order = [member.process for member in others]
    Random(str(peer.me)).shuffle(order)  # several newcomers do not begin with the same peer
    stated = peer.settings.join.member.capacity
    capacity = min(stated, peer.plan.microbatches) if stated > 1 else 0  # 1 is no statement; more are never in flight
    prober = Prober(peer.plan.boundary_bytes, str(peer.me), 0 if message.links else PLANNING_BYTES)
    prober.open(NO_EPOCH, (), order)
    peer.survey = LinkSurvey(message, peer.plan, prober, capacity, now + MEASURING_S)
    text = f"measures its links to {len(order)} peers, by which stages are chosen"
    return [Connect(tuple(others)), Log("info", text)]


def on_probe(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Answer a process that measures its links before it has a stage, or take the answer of one that was asked."""
    message = event.message
    if isinstance(message, Probe):
        return [*release(event.bodies), Send(event.sender, Probed(NO_EPOCH, message.loaded))]
    assert isinstance(message, Probed)
    if peer.survey is not None:
        link = peer.survey.prober.answered(event.sender, message, now)
        if link is not None:
            peer.survey.links[event.sender] = link
    return release(event.bodies)


def tick(peer: PeerState, now: float) -> list[Action]:
    """Go on with the survey, and report what came of it."""
    if peer.survey is None:
        return []
    actions, report = peer.survey.tick(now)
    if report is None:
        return actions
    peer.survey = None
    return [*actions, Send(peer.leader, report)]
