"""Pretended tensors: a gradient is the record of what was added to it, so that a miscount cannot hide."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b

from swarmflow.core.types import Epoch, Slice

Gradient = Counter[int]  # how often each microbatch of the step was added


def digest(*parts: object) -> str:
    """A short name for a value."""
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def digest_of(gradient: Gradient) -> str:
    """The name of a gradient: like addends, like digest."""
    return digest(sorted(gradient.items()))


@dataclass(slots=True)
class Weights:
    """One stage's pretended parameters, accumulator and reduced gradient. pieces: length of each group in pieces."""

    stage: int
    version: int
    parameters: str
    accumulated: Gradient = field(default_factory=Counter)
    reduced: dict[tuple[str, int], Gradient] = field(default_factory=dict)

    def read(self, body: Slice, piece_elements: int) -> Gradient:
        """What a slice of the accumulated or reduced gradient holds."""
        if body.reduced:
            return self.reduced[body.group, body.start // piece_elements]
        return self.accumulated.copy()

    def apply(self, epoch: Epoch, gradient: Gradient) -> None:
        """The update: parameters are named by all that was ever added to them."""
        self.parameters = digest(self.parameters, self.stage, digest_of(gradient))
        self.version = epoch.step + 1
        self.accumulated = Counter()
        self.reduced = {}


def initial(stage: int) -> Weights:
    """Version 0 of a stage."""
    return Weights(stage, 0, digest("initial", stage))
