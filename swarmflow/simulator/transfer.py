"""Pretended transfers of states from process to process, in the chunks that the runtime requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.background import Background
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.measure import Meter
from swarmflow.simulator.network import Network
from swarmflow.simulator.sizes import FRAME, HEADER

CHUNK_BYTES = 4 << 20  # the runtime requests four chunks of 1 MiB at a time (runtime/execution/state_transfer.py)


class Carrier(Protocol):
    """What a transfer needs of a swarm."""

    clock: Clock
    network: Network
    meter: Meter

    def alive(self, process: ProcessId) -> bool:
        """Return whether a process is alive."""
        ...


@dataclass(slots=True)
class Transfer:
    """Fetches each state from its first donor that is alive, one after the other, beside all other traffic."""

    world: Carrier
    to: ProcessId
    wanted: list[tuple[list[ProcessId], int]]  # (donors, bytes that are left) of each state
    done: Callable[[], None]  # called at the end, or when a state has no donor that is alive: the receiver checks
    part: Callable[[], None] | None = None  # called with each chunk that has arrived

    def begin(self) -> None:
        """Request the next chunk."""
        while self.wanted and self.wanted[0][1] <= 0:
            self.wanted.pop(0)
        donors = [p for p in self.wanted[0][0] if self.world.alive(p)] if self.wanted else []
        if not donors:
            self.world.clock.after(0.0, self._finish)
            return
        asked = self.world.network.path(self.to, donors[0]).send(FRAME + HEADER, False, self.world.clock.now_s)
        self.world.clock.at(asked.due_s, partial(self._answer, donors[0]))

    def _answer(self, donor: ProcessId) -> None:
        size_bytes = min(CHUNK_BYTES, self.wanted[0][1])
        chunk = self.world.network.path(donor, self.to).background(size_bytes, self.world.clock.now_s)
        self.world.meter.messages["state"] += 1
        self.world.meter.wire_bytes["state"] += size_bytes
        self._arrive(donor, chunk, size_bytes)

    def _arrive(self, donor: ProcessId, chunk: Background, size_bytes: int) -> None:
        """Wait until a chunk is here; what else is sent meanwhile goes first."""
        due_s = chunk.next_s(self.world.clock.now_s)
        if due_s is None:
            self._had(donor, size_bytes)
        else:
            self.world.clock.at(due_s, partial(self._arrive, donor, chunk, size_bytes))

    def _had(self, donor: ProcessId, size_bytes: int) -> None:
        if not self.world.alive(self.to):
            return
        donors, left = self.wanted[0]
        if self.world.alive(donor):  # else the chunk is requested again from another donor
            self.wanted[0] = (donors, left - size_bytes)
            if self.part is not None:
                self.part()
        self.begin()

    def _finish(self) -> None:
        if self.world.alive(self.to):
            self.done()
