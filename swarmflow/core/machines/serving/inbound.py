"""Every message that a peer takes: which epoch it belongs to, from which stages it may come, and what handles it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.machines.serving import ballots, epochs, leaders, leaving, microbatches, stages, surveys
from swarmflow.core.machines.serving.peer_state import PeerState
from swarmflow.core.pipeline import downstream, intake, passes
from swarmflow.core.pipeline.hop_table import HopTable
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
    MeasureLinks,
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
    ReportRoot,
    ReserveSlot,
    RosterDelta,
    Routed,
    SlotReserved,
    Surplus,
    Suspect,
    TakeSnapshot,
    VersionCertified,
)
from swarmflow.core.protocol.types import ProcessId, Ref

Handler = Callable[[PeerState, Received, float], list[Action]]
HopHandler = Callable[[HopTable, ProcessId, Any, tuple[Ref, ...], float], list[Action]]
BEFORE, BESIDE, AFTER = -1, 0, 1  # the stage of a sender, as seen from the receiver's; trainers are before the first


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


def _hop(handler: HopHandler, *places: int, scope: Scope = Scope.HOP) -> Inbound:
    return Inbound(scope, partial(_about_hop, handler), places or None)


def _about_hop(handler: HopHandler, peer: PeerState, event: Received, now: float) -> list[Action]:
    assert peer.hops is not None, "a message about a hop that is void is dropped before"
    peer.hops.admission.now_s = now
    return handler(peer.hops, event.sender, event.message, event.bodies, now)


_ORDERS: dict[type[Message], Handler] = {
    OpenStep: epochs.on_open_step,
    RosterDelta: epochs.on_open_step,
    MemberEntered: epochs.on_member_entered,
    MemberFailed: epochs.on_member_failed,
    Prepare: ballots.on_prepare,
    Commit: ballots.on_commit,
    ReportRoot: ballots.on_report_root,
    Granted: stages.on_granted,
    MeasureLinks: surveys.on_measure_links,
    TakeSnapshot: stages.on_take_snapshot,
    KeepCopy: stages.on_keep_copy,
    Surplus: stages.on_keep_copy,
    VersionCertified: stages.on_version_certified,
    Refused: leaving.on_refused,
    Evicted: leaving.on_evicted,
    Released: leaving.on_released,
    Postponed: leaving.on_postponed,
    Needed: leaving.on_needed,
    Finished: leaving.on_finished,
    Suspect: leaders.on_suspect,
    LeaderHeartbeat: _nothing,
}
INBOUND: dict[type[Message], Inbound] = {
    **{kind: Inbound(Scope.LEADER, handle) for kind, handle in _ORDERS.items()},
    Forward: _hop(intake.on_forward, BEFORE),
    ReserveSlot: _hop(intake.on_reserve_slot, BEFORE),
    Adopt: _hop(intake.on_adopt, BEFORE),
    Cancel: _hop(intake.on_cancel, BEFORE),
    CreditReturned: _hop(intake.on_credit_returned, BEFORE, scope=Scope.EPOCH),
    Accepted: _hop(downstream.on_accepted, AFTER),
    SlotReserved: _hop(downstream.on_slot_reserved, AFTER),
    Denied: _hop(downstream.on_denied, AFTER),
    Routed: _hop(downstream.on_routed, AFTER),
    Backward: _hop(passes.on_backward, AFTER),
    CreditAvailable: _hop(downstream.on_credit_available, AFTER, scope=Scope.EPOCH),
    Recall: _hop(downstream.on_recall),
    Recalled: _hop(lambda hops, sender, message, bodies, _: hops.restorer.on_recalled(sender, message, bodies)),
    Probe: _hop(intake.on_probe, BEFORE, BESIDE, scope=Scope.LINK),
    Probed: _hop(downstream.on_probed, BESIDE, AFTER, scope=Scope.LINK),
    DownstreamCost: _hop(downstream.on_downstream_cost, AFTER, scope=Scope.LINK),
    LinkRateReport: Inbound(Scope.EPOCH, microbatches.on_link_rates),
    RelayTensor: Inbound(Scope.HOP, microbatches.on_relay_tensor),
    ReducePart: Inbound(Scope.BALLOT, ballots.on_reduce_part),
    ReduceSum: Inbound(Scope.BALLOT, ballots.on_reduce_part),
    Elect: Inbound(Scope.RUN, leaders.on_elect),
    Negotiate: Inbound(Scope.RUN, microbatches.on_negotiate),
}


def misplaced(peer: PeerState, sender: ProcessId, message: Message, places: tuple[int, ...] | None) -> str | None:
    """Return why a message cannot come from the stage that its sender serves; None: it can.

    places: the stages that may send it, as seen from here; None: any.
    """
    epoch_view = peer.epoch_view
    if isinstance(message, RelayTensor) and epoch_view is not None:
        return _astray(epoch_view, sender, message)
    if epoch_view is None:
        return None
    began = epoch_view.opened.roster.stage_by_id.get(peer.me, peer.stage)
    if not began == epoch_view.place(peer.me) == peer.stage:
        return None  # it was moved amid the step: what still comes was meant for its former stage
    place = epoch_view.place(sender)
    if isinstance(message, Recall):
        fits = message.stage == peer.stage and place == peer.stage + (BEFORE if message.gradient else AFTER)
    elif isinstance(message, Recalled):
        fits = place == message.stage == peer.stage + (AFTER if message.gradient else BEFORE)
    else:
        fits = places is None or (place is not None and place - peer.stage in places)
    return None if fits else f"{type(message).__name__} from stage {place} to stage {peer.stage}"


def _astray(epoch_view: EpochView, sender: ProcessId, message: RelayTensor) -> str | None:
    """Return why a tensor cannot go from its sender to its receiver; the peer that relays it answers for it."""
    place, there = epoch_view.place(sender), epoch_view.place(message.to)
    step = AFTER if message.forward is not None else BEFORE
    if place is None or there is None or there == place + step:
        return None
    return f"a {'Forward' if step == AFTER else 'Backward'} to be carried from stage {place} to stage {there}"
