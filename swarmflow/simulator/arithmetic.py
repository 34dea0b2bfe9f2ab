"""Pretended tensors: a gradient is the record of what was added to it, so that a miscount cannot hide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from swarmflow.core.types import Epoch

Gradient = Counter[int]  # how often each microbatch of the step was added


def digest(*parts: object) -> str:
    """A short name for a value."""
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def digest_of(gradient: Gradient) -> str:
    """The name of a gradient: like addends, like digest."""
    return digest(sorted(gradient.items()))


@dataclass(frozen=True, slots=True)
class Sum:
    """A gradient that is not added to any more; its name is made once, however many peers hold it."""

    counts: Gradient
    name: str

    @classmethod
    def of(cls, addends: Iterable[Gradient]) -> Sum:
        """All of them together."""
        total: Gradient = Counter()
        for addend in addends:
            total.update(addend)
        return cls(total, digest_of(total))


@dataclass(slots=True)
class Weights:
    """One stage's pretended parameters, accumulator and reduced gradient, by (group, piece)."""

    stage: int
    version: int
    parameters: str
    accumulated: Gradient = field(default_factory=Counter)
    reduced: dict[tuple[str, int], Sum] = field(default_factory=dict)

    def apply(self, epoch: Epoch, gradient: Sum) -> None:
        """The update: parameters are named by all that was ever added to them."""
        self.parameters = digest(self.parameters, self.stage, gradient.name)
        self.version = epoch.step + 1
        self.accumulated = Counter()
        self.reduced = {}


def exact(stage: int, version: int, microbatches: int) -> str:
    """What a stage's parameters are at a version, where each microbatch of each step was learnt once."""
    learnt = Sum.of([Counter(range(microbatches))]).name
    expected = digest("initial", stage)
    for _ in range(version):
        expected = digest(expected, stage, learnt)
    return expected


def initial(stage: int) -> Weights:
    """Version 0 of a stage."""
    return Weights(stage, 0, digest("initial", stage))
