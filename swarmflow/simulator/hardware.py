"""Pretended computers: how long their work takes, and how many bytes it produces."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from swarmflow.core.commit.reduce import PIECE_ELEMENTS
from swarmflow.core.protocol.piece_format import FP32, PieceFormat


class Hardware(Protocol):
    """The computers of a world, by the names of their processes: a restart changes no computer."""

    def compute_s(self, name: str, stage: int, work: str) -> float:
        """Seconds of `forward`, `loss`, `backward`, `replay` (of one microbatch) or `update` at a stage."""
        ...

    def weights_share(self, name: str, work: str) -> float:
        """The part of a `loss` or `backward` that is left once the gradient of the input is there."""
        ...

    def load_s(self) -> float | None:
        """Seconds of loading or writing a state; None: it crosses the network, chunk by chunk."""
        ...

    def broken_s(self) -> float | None:
        """Seconds until a process notices that its connection to a dead one broke; None: it does not."""
        ...

    def capacity(self, name: str, stage: int) -> int:
        """Microbatches that a peer holds at a time at a stage; -1: at one for which it has memory. 0: it has none."""
        ...

    def speed(self, name: str) -> float:
        """The speed that a peer reports when it joins."""
        ...

    def upload_rate(self, name: str) -> float:
        """The rate of its uplink that a peer states when it joins, in bytes/s; 0: none."""
        ...

    def boundary_bytes(self, stage: int, kind: str) -> int:
        """Of a stage's `activation` (its output), of the `gradient` of its input, of `tokens` or `targets`."""
        ...

    def elements(self, group: str) -> int:
        """Length of a reduction group's flat gradient."""
        ...

    def piece(self) -> PieceFormat:
        """The bytes of a piece of an all-reduce."""
        ...

    def state_bytes(self, stage: int) -> int:
        """Of a stage's weights and optimizer state."""
        ...


@dataclass(frozen=True, slots=True)
class RandomHardware:
    """Hardware for the hunt for faults: random times between two bounds, and a few bytes."""

    random: Random
    work_s: tuple[float, float]
    loading_s: tuple[float, float]
    noticed_s: tuple[float, float]  # until a broken connection is noticed
    held: int  # microbatches that a peer holds at a time
    small: float = 0.0  # the share of the computers that have no memory for some of the stages
    stages: int = 1
    pressed: set[str] = field(default_factory=set)  # names of computers with memory for one microbatch only
    _unfit: dict[str, frozenset[int]] = field(default_factory=dict, init=False)  # by name

    def compute_s(self, name: str, stage: int, work: str) -> float:
        """Return a random time, the same for all work."""
        return self.random.uniform(*self.work_s)

    def weights_share(self, name: str, work: str) -> float:
        """Return a third."""
        return 1 / 3

    def load_s(self) -> float | None:
        """Return a random time, the same for all states."""
        return self.random.uniform(*self.loading_s)

    def broken_s(self) -> float | None:
        """Return a random time for each connection."""
        return self.random.uniform(*self.noticed_s)

    def capacity(self, name: str, stage: int) -> int:
        """Return the same for all but the pressed and the small ones."""
        if stage in self._small(name):
            return 0
        return 1 if name in self.pressed else self.held

    def _small(self, name: str) -> frozenset[int]:
        """Return the stages for which a computer has no memory."""
        if self.small and name not in self._unfit:
            none = self.random.random() >= self.small
            lacking = 0 if none else self.random.randrange(self.stages)
            self._unfit[name] = frozenset(self.random.sample(range(self.stages), lacking))
        return self._unfit.get(name, frozenset())

    def speed(self, name: str) -> float:
        """Return the same for all."""
        return 1.0

    def upload_rate(self, name: str) -> float:
        """Return 0: nobody states one."""
        return 0.0

    def boundary_bytes(self, stage: int, kind: str) -> int:
        """Return enough for a journal to exceed its bound."""
        return 100 if kind in ("activation", "gradient") else 0

    def elements(self, group: str) -> int:
        """Return three pieces: enough for several owners."""
        return 3 * PIECE_ELEMENTS

    def piece(self) -> PieceFormat:
        """Return fp32's."""
        return FP32

    def state_bytes(self, stage: int) -> int:
        """Return 0: a load takes load_s."""
        return 0
