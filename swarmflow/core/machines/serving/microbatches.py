"""The hops of a peer: messages and results go to its hop table, what it cannot go on with goes to the leader."""

from __future__ import annotations

from swarmflow.core.machines.serving.ballots import settled
from swarmflow.core.machines.serving.peer_state import PeerState, release
from swarmflow.core.pipeline import passes
from swarmflow.core.protocol.actions import Action, Count, Log, Send
from swarmflow.core.protocol.events import (
    BackwardComputed,
    ComputedNotFinite,
    ComputeFailed,
    ForwardComputed,
    InputGradientComputed,
    LossComputed,
    Overflowed,
    Received,
)
from swarmflow.core.protocol.messages import (
    LinkRateReport,
    Negotiate,
    NotFinite,
    Overflow,
    RelayedTensor,
    RelayTensor,
    Suspect,
    Unrepairable,
)
from swarmflow.core.protocol.messages.checks import LAYER_LENGTH_MAX
from swarmflow.core.protocol.types import Microbatch


def on_link_rates(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Take another peer's report of its link rates."""
    assert isinstance(event.message, LinkRateReport)
    peer.relays.learn(event.sender, event.message)
    if peer.hops is not None:
        peer.relays.report_changes(peer.hops.dispatcher.router)
    return []


def on_relay_tensor(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Relay a tensor from one peer of this epoch to another."""
    message = event.message
    assert isinstance(message, RelayTensor)
    if message.to == peer.me or peer.epoch_view is None or not peer.epoch_view.takes_part(message.to):
        return release(event.bodies)
    carried = RelayedTensor(event.sender, message.forward, message.backward, message.proof)
    return [Send(message.to, carried, event.bodies), *release(event.bodies)]


def on_negotiate(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Take a message of the negotiation of flows."""
    assert isinstance(event.message, Negotiate)
    return peer.flows.received(event.sender, event.message, now) if peer.flows is not None else []


def on_computed(
    peer: PeerState, event: ForwardComputed | InputGradientComputed | LossComputed | BackwardComputed, now: float
) -> list[Action]:
    """Take a result of computing; one of a stage that this process serves no more is dropped."""
    if peer.hops is None:
        ref = event.output if isinstance(event, ForwardComputed) else event.gradient
        return release((ref,) if ref is not None else ())
    match event:
        case ForwardComputed():
            return passes.on_forward_computed(peer.hops, event, now)
        case InputGradientComputed():
            return passes.on_input_gradient_computed(peer.hops, event)
        case LossComputed():
            return passes.on_loss_computed(peer.hops, event)
        case BackwardComputed():
            return passes.on_backward_computed(peer.hops, event)


def on_compute_failed(peer: PeerState, event: ComputeFailed, now: float) -> list[Action]:
    """Drop a hop whose bytes are no tensor of the expected kind, and accuse their sender."""
    if peer.hops is None:
        return []
    actions: list[Action] = [Count("frames_refused", "tensor"), Log("warning", event.reason)]
    hop = peer.hops.find(event.microbatch)
    if hop is not None and hop.accumulated:
        reason = f"the bytes of microbatch {event.microbatch.index} that were brought back cannot be used"
        return [*actions, *peer.void(Unrepairable(event.microbatch.epoch, reason), reason)]
    culprit, dropped = passes.failed(peer.hops, event.microbatch)
    if culprit is not None:
        dropped.append(Send(peer.leader, Suspect(culprit, f"sent an unusable tensor: {event.reason}")))
    return [*actions, *dropped, *settled(peer, now)]  # an orphan that could not be computed holds up no ballot


def on_overflowed(peer: PeerState, event: Overflowed, now: float) -> list[Action]:
    """A gradient does not fit into the step's fixed-point numbers."""
    hop = peer.hops.find(event.microbatch) if peer.hops is not None else None
    if not peer.takes(event.microbatch.epoch) or hop is None:  # without it, another holder will find the same
        return []
    return peer.void(
        Overflow(event.microbatch, hop.handovers), f"a gradient of microbatch {event.microbatch.index} is too large"
    )


def on_not_finite(peer: PeerState, event: ComputedNotFinite, now: float) -> list[Action]:
    """A value computed here is not finite: it goes nowhere, and the leader voids the try at the step."""
    if not peer.takes(event.epoch) or peer.hops is None:
        return []
    hop = peer.hops.find(Microbatch(event.epoch, event.index)) if event.index >= 0 else None
    if event.index >= 0 and hop is None:
        return []  # it was taken from this peer meanwhile: another holder will find the same
    owner, handovers = None, hop.handovers if hop is not None else ()
    if event.piece >= 0:
        owner = peer.reduction.summed_by(event.group, event.piece) if peer.reduction is not None else None
    layer = event.layer[:LAYER_LENGTH_MAX]  # a longer name would be refused, and with it what it is about
    message = NotFinite(event.epoch, event.index, event.value, layer, owner, handovers)
    reported: list[Action] = [Send(peer.leader, message)]
    if owner is None:  # else another leader begins the ballot anew, and the sum is found again
        reported = peer.void(message, f"the {event.value} of microbatch {event.index} is not finite")
    which = f"microbatch {event.epoch.step}/{event.index}" if event.index >= 0 else f"step {event.epoch.step}"
    text = f"the {event.value} of {which} is not finite" + (f" in {event.layer}" if event.layer else "")
    actions = [*reported, Log("warning", text)]
    return actions if event.value != "update" else [*actions, *peer.leave("its update was not finite")]
