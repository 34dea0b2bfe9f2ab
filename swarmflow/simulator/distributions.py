"""Numbers of a scenario, plain or as distributions: each is a function of one uniform number in [0, 1)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

DIGITS = 9  # that random values are rounded to, so that the last bit of a machine's logarithm changes nothing
_MASK = (1 << 64) - 1


class Distribution(Protocol):
    """A number or a distribution."""

    def at(self, share: float) -> float:
        """Return the value below which this share of the distribution lies. share: in [0, 1)."""
        ...


class Bounded(Distribution, Protocol):
    """A distribution that has a largest value."""

    @property
    def most(self) -> float:
        """No value is larger."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same."""

    value: float

    def at(self, share: float) -> float:
        """The value."""
        return self.value

    @property
    def most(self) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """Evenly between two numbers."""

    low: float
    high: float

    def at(self, share: float) -> float:
        """A number between the two."""
        return min(max(self.low, round(self.low + (self.high - self.low) * share, DIGITS)), self.high)

    @property
    def most(self) -> float:
        """The upper end."""
        return self.high


@dataclass(frozen=True, slots=True)
class Integers:
    """A whole number from low to high, both included, all alike likely."""

    low: int
    high: int

    def at(self, share: float) -> float:
        """One of the whole numbers."""
        return self.low + int(share * (self.high - self.low + 1))

    @property
    def most(self) -> float:
        """The upper end."""
        return self.high


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several values, all alike likely."""

    values: tuple[float, ...]

    def at(self, share: float) -> float:
        """One of the values."""
        return self.values[int(share * len(self.values))]

    @property
    def most(self) -> float:
        """The largest value."""
        return max(self.values)


@dataclass(frozen=True, slots=True)
class Normal:
    """Around a mean, cut off at least and at twice the mean less that, so that the mean stays."""

    mean: float
    deviation: float
    least: float = 0.0

    def at(self, share: float) -> float:
        """A number near the mean."""
        if self.deviation == 0:
            return self.mean
        value = NormalDist(self.mean, self.deviation).inv_cdf(min(max(share, 1e-12), 1 - 1e-12))
        return min(max(self.least, round(value, DIGITS)), self.most)

    @property
    def most(self) -> float:
        """The upper cut-off."""
        return self.mean if self.deviation == 0 else 2 * self.mean - self.least


def share_of(seed: int, first: int, second: int) -> float:
    """Return a uniform number in [0, 1) of an ordered pair, without a table of all pairs (splitmix64)."""
    state = (seed * 0x9E3779B97F4A7C15 + first * 0xBF58476D1CE4E5B9 + second * 0x94D049BB133111EB + 1) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)
