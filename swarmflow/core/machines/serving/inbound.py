"""Every message that a peer takes: which epoch it belongs to, from which stages it may come, and what handles it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from swarmflow.core.machines.serving import ballots, epochs, leaders, leaving, microbatches, stages
from swarmflow.core.machines.serving.peer_state import PeerState
from swarmflow.core.machines.serving.places import AFTER, BEFORE, BESIDE
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.messages import (
    Accepted,
    Adopt,
    Backward,
    Cancel,
    Commit,
    CreditAvailable,
    CreditReturned,
    Denied,
    DownstreamCost,
    Elect,
    Evicted,
    Finished,
    Forward,
    Granted,
    KeepCopy,
    LeaderHeartbeat,
    LinkRateReport,
    MemberEntered,
    MemberFailed,
    Message,
    Needed,
    Negotiate,
    OpenStep,
    Postponed,
    Prepare,
    Probe,
    Probed,
    Recall,
    Recalled,
    ReducePart,
    ReduceSum,
    Refused,
    RelayTensor,
    Released,
    ReserveSlot,
    RosterDelta,
    RosterPart,
    Routed,
    SlotReserved,
    Surplus,
    Suspect,
)

Handler = Callable[[PeerState, Received, float], list[Action]]


class Scope(Enum):
    """What a message is about, and so when it is too early, void, or from a process that may not send it."""

    LEADER = "leader"  # an order: only the leader that this peer follows may give it
    HOP = "hop"  # a microbatch of an epoch
    LINK = "link"  # a link, in an epoch
    EPOCH = "epoch"  # the current epoch, which it does not name
    BALLOT = "ballot"  # a ballot of an epoch: its groups say which members may send
    RUN = "run"  # an election or a negotiation, which judge for themselves


@dataclass(frozen=True, slots=True)
class Inbound:
    """How a peer takes one type of message."""

    scope: Scope
    handle: Handler
    places: tuple[int, ...] | None = None  # stages that may send it, as seen from here; None: any, or `misplaced` says


def _nothing(peer: PeerState, event: Received, now: float) -> list[Action]:
    return []


def _hop(kind: type, *places: int, scope: Scope = Scope.HOP) -> Inbound:
    return Inbound(scope, partial(microbatches.about_hop, microbatches.ABOUT_HOPS[kind]), places or None)


_ORDERS: dict[type[Message], Handler] = {
    RosterPart: epochs.roster_part,
    OpenStep: epochs.opened,
    RosterDelta: epochs.opened,
    MemberEntered: epochs.entered,
    MemberFailed: epochs.gone,
    Prepare: ballots.prepare,
    Commit: ballots.commit,
    Granted: stages.granted,
    KeepCopy: stages.keep,
    Surplus: stages.keep,
    Refused: leaving.refused,
    Evicted: leaving.evicted,
    Released: leaving.released,
    Postponed: leaving.postponed,
    Needed: leaving.needed,
    Finished: leaving.finished,
    Suspect: leaders.accused,
    LeaderHeartbeat: _nothing,
}
INBOUND: dict[type[Message], Inbound] = {
    **{kind: Inbound(Scope.LEADER, handle) for kind, handle in _ORDERS.items()},
    Forward: _hop(Forward, BEFORE),
    ReserveSlot: _hop(ReserveSlot, BEFORE),
    Adopt: _hop(Adopt, BEFORE),
    Cancel: _hop(Cancel, BEFORE),
    CreditReturned: _hop(CreditReturned, BEFORE, scope=Scope.EPOCH),
    Accepted: _hop(Accepted, AFTER),
    SlotReserved: _hop(SlotReserved, AFTER),
    Denied: _hop(Denied, AFTER),
    Routed: _hop(Routed, AFTER),
    Backward: _hop(Backward, AFTER),
    CreditAvailable: _hop(CreditAvailable, AFTER, scope=Scope.EPOCH),
    Recall: _hop(Recall),
    Recalled: _hop(Recalled),
    Probe: _hop(Probe, BEFORE, BESIDE, scope=Scope.LINK),
    Probed: _hop(Probed, BESIDE, AFTER, scope=Scope.LINK),
    DownstreamCost: _hop(DownstreamCost, AFTER, scope=Scope.LINK),
    LinkRateReport: Inbound(Scope.EPOCH, microbatches.rates),
    RelayTensor: Inbound(Scope.HOP, microbatches.carry),
    ReducePart: Inbound(Scope.BALLOT, ballots.reduce_part),
    ReduceSum: Inbound(Scope.BALLOT, ballots.reduce_part),
    Elect: Inbound(Scope.RUN, leaders.lead),
    Negotiate: Inbound(Scope.RUN, microbatches.negotiated),
}
