"""Compares the parameters that a run has learnt with those that it should have learnt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LIMIT = 1e-5
ORDER_NOISE_FACTOR = 20


@dataclass(frozen=True)
class Comparison:
    """The comparison of two sets of parameters."""

    holds: bool  # whether the two agree as they should
    largest: float  # the largest difference, relative to the largest number of its tensor
    tensor: str  # the one with the largest difference
    against: str  # the reference, in words

    def __str__(self) -> str:
        verdict = "same as" if self.holds else "DIFFERS from"
        return f"{verdict} {self.against}: largest difference {self.largest:.2g} ({self.tensor})"


def relative_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, float]:
    """Name -> max |a - b| / max |b| of each tensor. Raises ValueError where the names or shapes differ."""
    if a.keys() != b.keys():
        raise ValueError(f"only one side has {sorted(a.keys() ^ b.keys())}")
    for name in b:
        if a[name].shape != b[name].shape:
            raise ValueError(f"{name} has the shapes {tuple(a[name].shape)} and {tuple(b[name].shape)}")
    return {name: float((a[name] - b[name]).abs().max() / b[name].abs().max()) for name in b}


def order_limits(wanted: Mapping[str, Tensor], reordered: Mapping[str, Tensor]) -> dict[str, float]:
    """Return how far each tensor may be from `wanted` where only the order of float additions differs.

    reordered: the same training with the microbatches of each step added up in another order, which shows what the
    order alone does to each tensor.
    """
    noise = relative_difference(reordered, wanted)
    return {name: max(LIMIT, ORDER_NOISE_FACTOR * amount) for name, amount in noise.items()}


def compare_within(
    found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], limits: Mapping[str, float], against: str
) -> Comparison:
    """Whether each tensor is within its limit. Not-a-number is not."""
    distances = relative_difference(found, wanted)
    far = [name for name, distance in distances.items() if not distance <= limits[name]]
    worst = max(far or distances, key=lambda name: _or_infinite(distances[name] / limits[name]))
    return Comparison(not far, distances[worst], worst, against)


def compare_bits(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], against: str) -> Comparison:
    """Whether every bit of fp32 parameters is the same; -0.0 is not 0.0 here."""
    distances = relative_difference(found, wanted)
    other = [name for name in wanted if not torch.equal(_bits(found[name]), _bits(wanted[name]))]
    worst = max(other or distances, key=lambda name: _or_infinite(distances[name]))
    return Comparison(not other, distances[worst], worst, against)


def first_other_loss(found: Mapping[int, float], wanted: Mapping[int, float], *, exactly: bool) -> int | None:
    """Return the first step whose loss differs: the parameters began to differ one step before it, or earlier.

    exactly: to the last bit; else beyond what the order of additions does. None: every step that both know agrees.
    """
    share = 0.0 if exactly else LIMIT * ORDER_NOISE_FACTOR
    for step in sorted(found.keys() & wanted.keys()):
        if not abs(found[step] - wanted[step]) <= share * abs(wanted[step]):
            return step
    return None


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


def _or_infinite(distance: float) -> float:
    """Return a difference; infinity for not-a-number."""
    return distance if distance == distance else float("inf")
