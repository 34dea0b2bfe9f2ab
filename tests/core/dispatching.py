"""A dispatcher of a stage, for tests of whom it sends what."""

from __future__ import annotations

from swarmflow.core.pipeline.dispatcher import FIRST_FACTOR, SLOWEST_BYTES_S, Dispatcher
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.messages import Forward, ReserveSlot
from swarmflow.core.protocol.types import ProcessId, Ref
from swarmflow.core.routing.iwrr import Iwrr
from tests.core.samples import EPOCH, messages, process

A, B, C = process("a"), process("b"), process("c")
BODIES = (Ref(1, 100), Ref(2, 8))
WAY_S = 108 / SLOWEST_BYTES_S
FIRST_S = FIRST_FACTOR * 15.0 + WAY_S  # when a holder is late, as long as none ever passed anything on


def dispatcher(*peers: ProcessId, shares: dict[ProcessId, int] | None = None) -> Dispatcher:
    box = Dispatcher(1, Iwrr())
    box.open(EPOCH, peers, shares)
    return box


def sent_to(actions: list[Action]) -> list[ProcessId]:
    return [to for to, _ in messages(actions, Forward)]


def asked_of(actions: list[Action]) -> list[ProcessId]:
    return [to for to, _ in messages(actions, ReserveSlot)]
