"""The cut of a graph of operators into stages of like machines: a dynamic program over the places for a cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WORTH = 1.1  # of the time of the fastest cut, within which the one that sends the least is taken

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class OperatorCosts:
    """A graph of n operators in their order.

    seconds: of each for one microbatch. crossing: elements that a cut before each would have cross. places: before
    which operators it can be cut, rising. filled: for each p of 0 ... n, how many parameters lie before operator p;
    each stage needs one.
    """

    seconds: Sequence[float]
    crossing: Sequence[int]
    places: Sequence[int]
    filled: Sequence[int]


def cut_operators(costs: OperatorCosts, stages: int) -> tuple[int, ...] | None:
    """Return the first operator of stages 1, 2, ...; None: so many stages are not possible.

    The slowest stage is as fast as it can be, or up to WORTH times as slow where that has less cross the boundaries
    (FusionLLM, section 4: computation and communication of a partition of the OP-DAG).
    """
    edges = np.array([0, *costs.places, len(costs.seconds)])
    until = np.concatenate([[0.0], np.cumsum(costs.seconds)])[edges]
    filled = np.array(costs.filled)[edges]
    crossing = np.array([*costs.crossing, 0], dtype=np.float64)[edges]
    limit = _best(until, filled, stages, np.inf, None)
    if limit is None:
        return None
    slowest = max(float(until[high] - until[low]) for low, high in itertools.pairwise(limit))
    chosen = _best(until, filled, stages, slowest * WORTH, crossing)
    assert chosen is not None, "the fastest cut is within the limit"
    return tuple(int(edges[place]) for place in chosen[1:-1])


def _best(
    until: Floats, filled: npt.NDArray[np.int64], stages: int, limit: float, crossing: Floats | None
) -> list[int] | None:
    """Return the edges (indices) of the best stages, or None.

    crossing: to be added up over the boundaries and made least; None: the slowest stage is made fastest. limit: seconds
    of a stage, at most.
    """
    count = len(until)
    best = np.full((stages + 1, count), np.inf)
    best[0, 0] = 0.0
    before = np.zeros((stages + 1, count), dtype=np.int64)
    for stage in range(1, stages + 1):
        for edge in range(stage, count):
            took = until[edge] - until[:edge]
            fits = (filled[edge] > filled[:edge]) & (took <= limit)
            value = np.maximum(best[stage - 1, :edge], took) if crossing is None else best[stage - 1, :edge]
            value = np.where(fits, value, np.inf)
            place = int(np.argmin(value))
            sent = 0.0 if crossing is None else crossing[edge]
            best[stage, edge], before[stage, edge] = value[place] + sent, place
    if not np.isfinite(best[stages, count - 1]):
        return None
    edges = [count - 1]
    for stage in range(stages, 0, -1):
        edges.append(int(before[stage, edges[-1]]))
    return edges[::-1]
