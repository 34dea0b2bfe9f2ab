"""Pretended computers: how long what they do takes, and how much it weighs."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from swarmflow.core.reduce import PIECE_ELEMENTS

ELEMENT_BYTES = 4  # of a gradient, as the machines are told


class Hardware(Protocol):
    """What the machines of a world are able to. Processes are asked for by name: a restart changes no computer."""

    def compute_s(self, name: str, stage: int, work: str) -> float:
        """Seconds of `forward`, `loss`, `backward`, `replay` (of one microbatch) or `update` at a stage."""
        ...

    def load_s(self) -> float | None:
        """Seconds of loading or writing a state; None: it crosses the network, chunk by chunk."""
        ...

    def broken_s(self) -> float | None:
        """Seconds until those connected to a process that died notice; None: they do not."""
        ...

    def capacity(self, name: str, stage: int) -> int:
        """Microbatches that a peer holds at a time."""
        ...

    def speed(self, name: str) -> float:
        """What a peer says of its speed when it joins."""
        ...

    def boundary_bytes(self, stage: int, kind: str) -> int:
        """Of a stage's `activation` (its output), of the `gradient` of its input, of `tokens` or `targets`."""
        ...

    def elements(self, group: str) -> int:
        """Length of a reduction group's flat gradient."""
        ...

    def state_bytes(self, stage: int) -> int:
        """Of a stage's weights and optimizer state."""
        ...


@dataclass(frozen=True, slots=True)
class RandomHardware:
    """For the hunt for faults: each time is drawn between two bounds, and bytes are a token.

    pressed: names of computers with little memory left, for one microbatch.
    """

    random: Random
    work_s: tuple[float, float]
    loading_s: tuple[float, float]
    noticed_s: tuple[float, float]
    held: int
    pressed: set[str] = field(default_factory=set)

    def compute_s(self, name: str, stage: int, work: str) -> float:
        """Whatever it is."""
        return self.random.uniform(*self.work_s)

    def load_s(self) -> float | None:
        """Whatever is loaded."""
        return self.random.uniform(*self.loading_s)

    def broken_s(self) -> float | None:
        """Each one notices at another moment."""
        return self.random.uniform(*self.noticed_s)

    def capacity(self, name: str, stage: int) -> int:
        """The same for all but those that are pressed."""
        return 1 if name in self.pressed else self.held

    def speed(self, name: str) -> float:
        """The same for all."""
        return 1.0

    def boundary_bytes(self, stage: int, kind: str) -> int:
        """Enough for a journal to be over its bound."""
        return 100 if kind in ("activation", "gradient") else 0

    def elements(self, group: str) -> int:
        """Three pieces: enough for several owners."""
        return 3 * PIECE_ELEMENTS

    def state_bytes(self, stage: int) -> int:
        """Not of interest: a load takes load_s."""
        return 0
