"""The order of groups in a pipeline: an open-loop travelling salesman over their links (DT-FM, equation 4)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

EXACT_MAX = 12  # groups up to which the best order is found: their number times 2 to it states

Matrix = NDArray[np.float64]


def order_of(links_s: Matrix, fixed: Mapping[int, int] | None = None) -> tuple[int, ...]:
    """Return the groups in the order of the shortest open path through all of them.

    links_s: what a link between two groups costs, `[group][group]`. fixed: the place of a group that must keep one.
    Exact up to EXACT_MAX groups; of more a path that no reversal of a part makes shorter, and where some are fixed all
    stay.
    """
    count, fixed = len(links_s), fixed or {}
    if count <= EXACT_MAX:
        return _exact(links_s, fixed)
    return tuple(range(count)) if fixed else _reversed_parts(links_s)


def _exact(links_s: Matrix, fixed: Mapping[int, int]) -> tuple[int, ...]:
    """Return the best order, by the dynamic program of Bellman, Held and Karp over sets of groups and their last."""
    count = len(links_s)
    places = np.array([fixed.get(group, -1) for group in range(count)])
    taken = set(fixed.values())
    allowed = np.array([(places == place) | ((places < 0) & (place not in taken)) for place in range(count)])
    groups, bits = np.arange(count), 1 << np.arange(count)
    costs = np.full((1 << count, count), np.inf)  # of the best path through a set of groups, `[set][last]`
    before = np.zeros((1 << count, count), dtype=np.int64)  # the group before the last one of that path
    costs[bits[allowed[0]], groups[allowed[0]]] = 0.0
    for size, sets in enumerate(_sets_by_size(count), 1):
        through = costs[sets][:, :, None] + links_s
        best, last = through.min(axis=1), through.argmin(axis=1)
        row, group = np.nonzero((sets[:, None] & bits == 0) & allowed[size])
        costs[sets[row] | bits[group], group] = best[row, group]
        before[sets[row] | bits[group], group] = last[row, group]
    used = (1 << count) - 1
    end = int(costs[used].argmin())
    order = [end]
    while used.bit_count() > 1:
        used, end = used & ~(1 << end), int(before[used, end])
        order.append(end)
    return tuple(reversed(order))


@cache
def _sets_by_size(count: int) -> tuple[NDArray[np.int64], ...]:
    """Return the sets of 1, 2, ... count - 1 of so many groups, as bits."""
    sets = np.arange(1 << count)
    sizes = np.bitwise_count(sets)
    return tuple(sets[sizes == size] for size in range(1, count))


def _reversed_parts(links_s: Matrix) -> tuple[int, ...]:
    """Return a good order: from group to the nearest group, then with parts of the path reversed (2-opt; Croes, 1958).

    Of 20 groups on a line it finds the shortest path, where simulated annealing in networkx needs 1.6 times that.
    """
    count = len(links_s)
    order = [0]
    while len(order) < count:
        order.append(min(set(range(count)).difference(order), key=lambda group: float(links_s[order[-1], group])))
    padded = np.zeros((count + 1, count + 1))  # before the first and after the last group there is no link
    padded[:count, :count] = links_s
    while True:
        path = np.array([count, *order, count])
        here = padded[path[:-1], path[1:]]  # the link before each place, and the one after the last
        first, last = path[1:-1], path[1:-1]
        gain = here[:-1, None] + here[None, 1:] - padded[path[:-2, None], last] - padded[first[:, None], path[None, 2:]]
        gain[np.tril_indices(count)] = 0.0
        begin, end = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[begin, end] <= 1e-12 * here.sum():
            return tuple(order)
        order[begin : end + 1] = order[begin : end + 1][::-1]
