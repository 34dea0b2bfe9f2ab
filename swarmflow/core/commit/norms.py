"""The norm of a step's gradients: what they are clipped by, and whether they may reach the weights at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from swarmflow.core.protocol.types import Group, ProcessId

NUMBER_MAX = 3.4e38  # of fp32
CLIPPED_MAX = 1e18  # a larger gradient has squares that an optimizer's second moment in fp32 cannot hold


def squared_norms(groups: Sequence[Group], results: Mapping[ProcessId, Mapping[str, tuple[float, str]]]) -> list[float]:
    """Of the gradient of each group: about the same from all members, so that the middle one is right.

    results: (squared norm, digest) by group, of each member.
    """
    by_group = [sorted(results[process][group.name][0] for process in group.members) for group in groups]
    return [norms[len(norms) // 2] for norms in by_group]


def clipping(squared: Sequence[float], tokens: int, clip: float) -> tuple[float, float]:
    """(norm of the gradient of a token, factor by which it is clipped). squared: norms by group. clip: 0: never."""
    norm = math.sqrt(sum(squared)) / tokens
    return norm, min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0


def fits(squared: Sequence[float], tokens: int, clip: float) -> bool:
    """Whether the gradients have a norm, and are small enough for the numbers of an optimizer."""
    if not all(0.0 <= each <= NUMBER_MAX**2 for each in squared):
        return False
    norm, factor = clipping(squared, tokens, clip)
    return norm * factor <= CLIPPED_MAX
