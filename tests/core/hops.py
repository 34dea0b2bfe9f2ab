"""Feeds the hop table of a peer: messages by the table that a peer uses, and results of computing."""

from __future__ import annotations

from functools import partial

from swarmflow.core.machines.serving.inbound import INBOUND, HopHandler
from swarmflow.core.pipeline import passes
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.events import (
    BackwardComputed,
    ForwardComputed,
    InputGradientComputed,
    LossComputed,
    Replayed,
)
from swarmflow.core.protocol.messages import Message
from swarmflow.core.protocol.types import ProcessId, Ref


def receive(
    hops: HopTable, sender: ProcessId, message: Message, bodies: tuple[Ref, ...] = (), now: float = 0.0
) -> list[Action]:
    hops.admission.now_s = now
    handle = INBOUND[type(message)].handle
    assert isinstance(handle, partial)
    about_hop: HopHandler = handle.args[0]
    return about_hop(hops, sender, message, bodies, now)


def computed(
    hops: HopTable,
    event: ForwardComputed | InputGradientComputed | LossComputed | BackwardComputed | Replayed,
    now: float = 0.0,
) -> list[Action]:
    match event:
        case InputGradientComputed():
            return passes.on_input_gradient_computed(hops, event)
        case ForwardComputed():
            return passes.on_forward_computed(hops, event, now)
        case LossComputed():
            return passes.on_loss_computed(hops, event)
        case BackwardComputed():
            return passes.on_backward_computed(hops, event)
        case Replayed():
            return passes.on_replayed(hops, event)
