"""The hops of a peer: messages and results go to its machine for them, what it cannot go on with to the leader."""

from __future__ import annotations

from swarmflow.core.actions import Action, Count, Log, Send
from swarmflow.core.events import (
    BackwardComputed,
    ComputedNotFinite,
    ComputeFailed,
    ForwardComputed,
    LossComputed,
    Overflowed,
    Received,
)
from swarmflow.core.messages import LinkRateReport, Negotiate, NotFinite, Overflow, RelayedTensor, RelayTensor, Suspect
from swarmflow.core.serving.peer_state import PeerState, release


def message(peer: PeerState, event: Received, now: float) -> list[Action]:
    """A message about one hop; that it belongs to this epoch and its roster was checked before."""
    assert peer.hops is not None, "checked where messages come in"
    return peer.hops.message(event.sender, event.message, event.bodies, now)


def rates(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Another peer tells of the ways from it."""
    assert isinstance(event.message, LinkRateReport)
    peer.relays.learn(event.sender, event.message)
    if peer.hops is not None:
        peer.hops.dispatcher.rerouted(peer.relays.changed)
    return []


def carry(peer: PeerState, event: Received, now: float) -> list[Action]:
    """A tensor goes through here, from one peer of this epoch to another."""
    message = event.message
    assert isinstance(message, RelayTensor)
    if message.to == peer.me or peer.epoch_view is None or not peer.epoch_view.takes_part(message.to):
        return release(event.bodies)
    carried = RelayedTensor(event.sender, message.forward, message.backward)
    return [Send(message.to, carried, event.bodies), *release(event.bodies)]


def negotiated(peer: PeerState, event: Received, now: float) -> list[Action]:
    """A word about flows."""
    assert isinstance(event.message, Negotiate)
    return peer.flows.received(event.sender, event.message, now) if peer.flows is not None else []


def computed(peer: PeerState, event: ForwardComputed | LossComputed | BackwardComputed, now: float) -> list[Action]:
    """A result; one of a stage that this process serves no more is dropped."""
    if peer.hops is None:
        ref = event.output if isinstance(event, ForwardComputed) else event.gradient
        return release((ref,) if ref is not None else ())
    match event:
        case ForwardComputed():
            return peer.hops.forward_computed(event, now)
        case LossComputed():
            return peer.hops.loss_computed(event)
        case BackwardComputed():
            return peer.hops.backward_computed(event)


def compute_failed(peer: PeerState, event: ComputeFailed, now: float) -> list[Action]:
    """What somebody sent is no tensor of the kind that it should be."""
    if peer.hops is None:
        return []
    culprit, actions = peer.hops.failed(event.microbatch)
    if culprit is not None:
        actions.append(Send(peer.leader, Suspect(culprit, f"sent an unusable tensor: {event.reason}")))
    return [Count("frames_refused", "tensor"), Log("warning", event.reason), *actions]


def overflowed(peer: PeerState, event: Overflowed, now: float) -> list[Action]:
    """A gradient does not fit into the step's fixed-point numbers."""
    if event.microbatch.epoch != peer.epoch:
        return []
    return [Send(peer.leader, Overflow(event.microbatch))]


def not_finite(peer: PeerState, event: ComputedNotFinite, now: float) -> list[Action]:
    """A value computed here is not finite: it goes nowhere, and the leader voids the try at the step."""
    if event.epoch != peer.epoch or peer.hops is None:
        return []
    owner = None
    if event.piece >= 0:
        owner = peer.ballot.reduction.summed_by(event.group, event.piece) if peer.ballot is not None else None
    message = NotFinite(event.epoch, event.index, event.value, event.layer, owner)
    which = f"microbatch {event.epoch.step}/{event.index}" if event.index >= 0 else f"step {event.epoch.step}"
    text = f"the {event.value} of {which} is not finite" + (f" in {event.layer}" if event.layer else "")
    actions: list[Action] = [Send(peer.leader, message), Log("warning", text)]
    return actions if event.value != "update" else [*actions, *peer.leave("its update was not finite")]
