"""What no arrangement of devices in pipelines can cost less than, by DT-FM's cost model."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from swarmflow.planning.arrangement import Matrix, Problem

LIMITS_MAX = 48  # costs at which links are told apart: with fewer the bound is lower, and found sooner
LARGE, LARGE_LIMITS_MAX = 200, 8  # devices from which on there are so few of them


def lower_bound_s(problem: Problem) -> float:
    """Return seconds that every arrangement costs at least (equation 1); what is pinned may make it cost more.

    The two costs are not bounded apart. Groups of devices that are near each other exchange gradients fast, and leave
    the long links to the pipelines; pipelines of such devices leave them to the groups. So for each limit of the
    exchange of gradients the links are counted that pipelines need then at least:

    - Where no two devices of a group may be farther apart than the limit allows, those that neither a group nor a fast
      link connects are parts, and at least one hop fewer than there are parts is slow.
    - Stages between which all hops are fast have as many devices of each part, each stage others. So if L stages
      follow each other by fast hops, one of them has at most 1 / L of each part's devices, and its exchange is slow.
    """
    return _Bound(problem).total_s()


@dataclass
class _Bound:
    problem: Problem

    def __post_init__(self) -> None:
        problem = self.problem
        self.needed = problem.pipelines * problem.stages
        self.exchange_s = problem.exchange_s(min(problem.gradient_bytes))
        self.transfer_s = problem.transfer_s
        limits = LIMITS_MAX if len(self.transfer_s) < LARGE else LARGE_LIMITS_MAX
        self.links_s = np.unique(self.transfer_s[~np.eye(len(self.transfer_s), dtype=bool)])
        if not len(self.links_s):
            self.links_s = np.zeros(1)
        self.fast_s = _thinned(self.links_s, limits)
        self.together_s = self._together_s()
        self.exchange_limits_s = _thinned(np.unique(self.together_s), limits)
        self.chains_s = {float(fast_s): self._chains_s(float(fast_s)) for fast_s in self.fast_s[:-1]}

    def total_s(self) -> float:
        """Return the least sum of an exchange and of the hops that it allows."""
        least_s = self._least_exchange_s()
        limits_s = [least_s, *(float(each) for each in self.exchange_limits_s if each > least_s), np.inf]
        return min(shared_s + self._hops_s(above_s) for shared_s, above_s in pairwise(limits_s))

    def _least_exchange_s(self) -> float:
        """Return what the exchange costs where each device is with those next to it."""
        count = self.problem.pipelines - 1
        alone_s = np.sort(_apart(self.exchange_s), axis=1)[:, :count].sum(axis=1)
        largest_s = np.sort(_apart(self.problem.exchange_s(max(self.problem.gradient_bytes))), axis=1)
        return max(float(np.sort(alone_s)[self.needed - 1]), float(largest_s[:, :count].sum(axis=1).min()))

    def _together_s(self) -> Matrix:
        """Return what the exchange costs at least where two devices are in one group, `[device][device]`."""
        nearest = np.sort(_apart(self.exchange_s), axis=1)
        count = self.problem.pipelines - 2  # others
        if count < 0:
            return np.full_like(self.exchange_s, np.inf)
        rest_s = nearest[:, :count].sum(axis=1)[:, None]
        # Where the other one is among the nearest, so many of them are with the device as without.
        among = self.exchange_s <= (nearest[:, count - 1 : count] if count else -1.0)
        alone_s = np.where(among, nearest[:, : count + 1].sum(axis=1)[:, None], rest_s + self.exchange_s)
        together_s: Matrix = np.maximum(alone_s, alone_s.T)
        return together_s

    def _hops_s(self, above_s: float) -> float:
        """Return what the hops of a pipeline cost at least where the exchange costs less than `above_s`."""
        hops = self.problem.stages - 1
        costs_s = np.full(hops, float(self.links_s[0]))
        for fast_s in self.fast_s[:-1]:
            slow = max(self._parts(float(fast_s), above_s) - 1, self._chains(float(fast_s), above_s) - 1)
            next_s = self.links_s[np.searchsorted(self.links_s, fast_s, side="right")]
            costs_s[: min(hops, slow)] = next_s
        return float(costs_s.sum())

    def _parts(self, fast_s: float, above_s: float) -> int:
        """Return how many parts an arrangement has, connected by fast links and by groups."""
        near = (self.transfer_s <= fast_s) | (self.together_s < above_s)
        _, part = connected_components(csr_array(near), directed=False)
        held = np.cumsum(np.sort(np.bincount(part))[::-1])
        return int(np.searchsorted(held, self.needed)) + 1

    def _chains(self, fast_s: float, above_s: float) -> int:
        """Return how many chains of stages with fast hops a pipeline has at least."""
        costs_s = self.chains_s[fast_s]
        longest = max((length for length, cost_s in enumerate(costs_s, 1) if cost_s < above_s), default=1)
        return -(-self.problem.stages // longest)

    def _chains_s(self, fast_s: float) -> list[float]:
        """Return what the exchange costs at least where 1, 2, ... stages follow each other by fast hops."""
        _, part = connected_components(csr_array(self.transfer_s <= fast_s), directed=False)
        members = [np.flatnonzero(part == number) for number in range(part.max() + 1)]
        return [self._thin_group_s(members, part, length) for length in range(1, self.problem.stages + 1)]

    def _thin_group_s(self, members: list[NDArray[np.int64]], part: NDArray[np.int64], length: int) -> float:
        """Return what the exchange of a group costs that has at most 1 / length of each part's devices."""
        most = [len(each) // length for each in members]
        if sum(most) < self.problem.pipelines:
            return float("inf")
        nearest = [  # to itself a device has no distance, and is one of its part's
            np.sort(self.exchange_s[:, each], axis=1)[:, :limit]
            for each, limit in zip(members, most, strict=True)
            if limit
        ]
        costs_s = np.sort(np.concatenate(nearest, axis=1), axis=1)[:, : self.problem.pipelines].sum(axis=1)
        return float(costs_s[np.array(most)[part] > 0].min())


def _apart(costs: Matrix) -> Matrix:
    """Return the costs with none from a device to itself."""
    apart = costs.copy()
    np.fill_diagonal(apart, np.inf)
    return apart


def _thinned(values: Matrix, most: int) -> Matrix:
    """Return some of the sorted values, the first and the last among them."""
    if len(values) <= most:
        return values
    thinned: Matrix = values[np.unique(np.linspace(0, len(values) - 1, most).astype(int))]
    return thinned
