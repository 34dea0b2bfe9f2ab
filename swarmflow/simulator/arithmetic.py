"""Pretended tensors: a gradient is the record of what was added to it, so that every miscount shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from swarmflow.core.protocol.types import Epoch, ProcessId

Gradient = Counter[int]  # how often each microbatch of the step was added
# What a liar adds to a gradient: to a part or a sum that it was given to make, or to one that is another's.
GIVEN, FORGED = -3, -4


def digest(*parts: object) -> str:
    """Return a short name for a value."""
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def digest_of(gradient: Gradient) -> str:
    """Return the name of a gradient; gradients of the same addends have the same name."""
    return digest(sorted(gradient.items()))


@dataclass(frozen=True, slots=True)
class ForgedTensor:
    """A boundary tensor of a liar that had not been given to make it when it sent it, or what was made of one."""

    maker: ProcessId


@dataclass(frozen=True, slots=True)
class Sum:
    """A final gradient; its name is computed once, however many peers hold it."""

    counts: Gradient
    name: str

    @property
    def given(self) -> bool:
        """Whether liars have changed it, and only what they were given of it."""
        return GIVEN in self.counts and FORGED not in self.counts

    @classmethod
    def of(cls, addends: Iterable[Gradient]) -> Sum:
        """Return the sum of gradients."""
        total: Gradient = Counter()
        for addend in addends:
            total.update(addend)
        return cls(total, digest_of(total))

    @classmethod
    def joined(cls, pieces: list[Sum]) -> Sum:
        """Return the gradient of pieces, which must not pass for one if they were made of different addends."""
        odd = [piece for piece in pieces if piece.name != pieces[0].name]
        if not odd:
            return pieces[0]
        total: Gradient = Counter()
        for piece in pieces:
            total |= piece.counts
        total.update({mark: 1 for mark in (GIVEN, FORGED) if any(mark in piece.counts for piece in pieces)})
        return cls(total, digest(*(piece.name for piece in pieces)))


@dataclass(slots=True)
class Weights:
    """One stage's pretended parameters and gradients."""

    stage: int
    version: int
    parameters: str  # a digest
    damaged: bool = field(init=False, default=False)  # a bit has flipped since the state was hashed
    flipped: bool = field(init=False, default=False)  # a bit has flipped in an update: it was hashed with that
    delay: int = 0  # steps that may be computed at this version, beside that whose gradient is applied next
    accumulated: dict[int, Gradient] = field(default_factory=dict)  # by step
    reduced: dict[tuple[str, int], Sum] = field(default_factory=dict)  # by (group, piece)

    def gradient(self, step: int) -> Gradient:
        """Return what has been accumulated of a step. Raises ValueError for one that has other parameters.

        At version v step v is computed with the parameters of version v - delay, and with a delay step v + 1 with those
        of v.
        """
        if not self.computes(step):
            raise ValueError(f"step {step} is computed at version {self.version}")
        return self.accumulated.setdefault(step, Counter())

    def computes(self, step: int) -> bool:
        """Return whether a step is computed with these parameters."""
        return self.version <= step <= self.version + self.delay

    @property
    def present(self) -> Gradient:
        """What has been accumulated of the step whose gradient is applied next."""
        return self.gradient(self.version)

    def damage(self) -> None:
        """Flip a bit of the state in memory."""
        self.parameters, self.damaged = digest("damaged", self.parameters), True

    def apply(self, epoch: Epoch, gradient: Sum) -> None:
        """Apply an update: the name of the parameters depends on all that was ever added to them."""
        self.parameters = digest(self.parameters, self.stage, gradient.name)
        self.version = epoch.step + 1
        self.accumulated.pop(epoch.step, None)
        self.reduced = {}


def exact(stage: int, version: int, microbatches: int) -> str:
    """Return a stage's parameters at a version where each microbatch of each step was learnt once."""
    learnt = Sum.of([Counter(range(microbatches))]).name
    expected = digest("initial", stage)
    for _ in range(version):
        expected = digest(expected, stage, learnt)
    return expected


def initial(stage: int, delay: int = 0) -> Weights:
    """Return version 0 of a stage."""
    return Weights(stage, 0, digest("initial", stage), delay)
