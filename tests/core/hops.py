"""Feeds the hop table of a peer: messages by the table that a peer uses, and results of computing."""

from __future__ import annotations

from swarmflow.core import passes
from swarmflow.core.actions import Action
from swarmflow.core.events import BackwardComputed, ForwardComputed, LossComputed, Replayed
from swarmflow.core.hop_table import HopTable
from swarmflow.core.messages import Message
from swarmflow.core.serving.microbatches import ABOUT_HOPS
from swarmflow.core.types import ProcessId, Ref


def receive(
    hops: HopTable, sender: ProcessId, message: Message, bodies: tuple[Ref, ...] = (), now: float = 0.0
) -> list[Action]:
    hops.admission.now_s = now
    return ABOUT_HOPS[type(message)](hops, sender, message, bodies, now)


def computed(
    hops: HopTable, event: ForwardComputed | LossComputed | BackwardComputed | Replayed, now: float = 0.0
) -> list[Action]:
    match event:
        case ForwardComputed():
            return passes.forward_computed(hops, event, now)
        case LossComputed():
            return passes.loss_computed(hops, event)
        case BackwardComputed():
            return passes.backward_computed(hops, event)
        case Replayed():
            return passes.replayed(hops, event)
