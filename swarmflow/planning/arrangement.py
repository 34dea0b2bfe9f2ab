"""The communication cost of devices arranged in pipelines, by DT-FM's model (Yuan et al., 2022, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from swarmflow.errors import ConfigError

Matrix = NDArray[np.float64]
Group = tuple[int, ...]  # the devices of one stage, sorted
PERMUTED_MAX = 6  # rows of a cost matrix up to which all matchings are tried


@dataclass(frozen=True)
class Arrangement:
    """Pipelines of devices, and what they cost."""

    pipelines: tuple[tuple[int, ...], ...]  # devices, `[pipeline][stage]`
    cost_s: float  # equation 1


@dataclass
class Problem:
    """The choice of a device for each stage of each pipeline.

    Raises ConfigError when there are fewer devices than pipelines * stages; more devices stay spare.
    """

    latency_s: Sequence[Sequence[float]]  # `[from][to]`
    bytes_per_s: Sequence[Sequence[float]]  # `[from][to]`, may be infinite
    pipelines: int  # number of pipelines, D_DP
    stages: int  # number of stages, D_PP
    activation_bytes: float  # size of an activation or its gradient, c_PP
    gradient_bytes: Sequence[float]  # size of the gradients of each stage, c_DP
    pinned: dict[int, int] = field(default_factory=dict)  # device -> the stage that it serves
    transfer_s: Matrix = field(init=False)  # time of an activation and its gradient, `[from][to]`
    _exchange_s: list[Matrix] = field(init=False)  # time of a stage's gradients, `[stage][from][to]`
    _kind: list[int] = field(init=False)  # for each device the first device with the same links
    _data_parallel_cache: dict[tuple[Group, float], float] = field(init=False, default_factory=dict)
    _matched_cache: dict[tuple[Group, Group], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.pipelines < 1 or len(self.latency_s) < self.pipelines * self.stages:
            raise ConfigError(f"{self.stages} stages need at least as many peers, not {len(self.latency_s)}")
        latency_s, rate = np.asarray(self.latency_s, dtype=float), np.asarray(self.bytes_per_s, dtype=float)
        latency_s, s_per_byte = (latency_s + latency_s.T) / 2, 2 / (rate + rate.T)
        self.transfer_s = 2 * (latency_s + self.activation_bytes * s_per_byte)
        self._exchange_s = [2 * (latency_s + size / self.pipelines * s_per_byte) for size in self.gradient_bytes]
        for exchange_s in self._exchange_s:
            np.fill_diagonal(exchange_s, 0.0)
        self._kind = _kinds(self.transfer_s)

    def data_parallel_s(self, group: Group, stage: int) -> float:
        """Return the cost of exchanging the gradients of a stage among its devices (equation 2)."""
        key = (group, self.gradient_bytes[stage])
        if key not in self._data_parallel_cache:
            self._data_parallel_cache[key] = float(self._exchange_s[stage][np.ix_(group, group)].sum(axis=1).max())
        return self._data_parallel_cache[key]

    def matched_s(self, one: Group, other: Group) -> float:
        """Return the slowest transfer of the best matching between the devices of two stages (equation 3)."""
        # Neither the order of the two groups nor an exchange of devices of one kind changes the cost.
        first, second = (tuple(sorted(self._kind[device] for device in group)) for group in (one, other))
        kinds = (first, second) if first < second else (second, first)
        if kinds not in self._matched_cache:
            costs = self.transfer_s[np.ix_(one, other)]
            self._matched_cache[kinds] = max(float(costs[row, column]) for row, column in enumerate(matching(costs)))
        return self._matched_cache[kinds]

    def cost_s(self, groups: Sequence[Group]) -> float:
        """Return the cost of these groups in this order of stages (equation 1)."""
        exchange_s = max(self.data_parallel_s(group, stage) for stage, group in enumerate(groups))
        return exchange_s + sum(self.matched_s(one, other) for one, other in pairwise(groups))

    def arrangement(self, groups: Sequence[Group]) -> Arrangement:
        """Return the pipelines of these groups in this order of stages."""
        pipelines = [[device] for device in groups[0]]
        for one, other in pairwise(groups):
            chosen = matching(self.transfer_s[np.ix_(one, other)])
            successor = {device: other[chosen[row]] for row, device in enumerate(one)}
            for pipeline in pipelines:
                pipeline.append(successor[pipeline[-1]])
        return Arrangement(tuple(tuple(pipeline) for pipeline in pipelines), self.cost_s(groups))


def _kinds(transfer_s: Matrix) -> list[int]:
    """Return for each device the first device with the same links to all others: the two cost the same anywhere."""
    kinds: list[int] = []
    for device, row in enumerate(transfer_s):
        differs = transfer_s[:device] != row
        differs[:, device] = False
        np.fill_diagonal(differs, False)
        kinds.append(next((other for other in range(device) if not differs[other].any()), device))
    return kinds


def matching(costs: Matrix) -> tuple[int, ...]:
    """Return the matching, as the column of each row, with the least maximum entry (and then, for few rows, sum)."""
    count = len(costs)
    if count <= PERMUTED_MAX:
        choices = np.array(list(permutations(range(count))))
        entries = costs[np.arange(count), choices]
        best = min(range(len(choices)), key=lambda number: (entries[number].max(), entries[number].sum()))
        return tuple(int(column) for column in choices[best])
    limits = np.unique(costs)
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _perfect(costs <= limits[middle]) is not None else (middle + 1, high)
    found = _perfect(costs <= limits[low])
    assert found is not None
    return found


def _perfect(allowed: NDArray[np.bool_]) -> tuple[int, ...] | None:
    """Return a perfect matching, as the column of each row, by augmenting paths; None when there is none."""
    row_of: dict[int, int] = {}
    columns = [[column for column, free in enumerate(row) if free] for row in allowed.tolist()]

    def augment(row: int, seen: set[int]) -> bool:
        for column in columns[row]:
            if column not in seen:
                seen.add(column)
                if column not in row_of or augment(row_of[column], seen):
                    row_of[column] = row
                    return True
        return False

    if not all(augment(row, set()) for row in range(len(allowed))):
        return None
    column_of = {row: column for column, row in row_of.items()}
    return tuple(column_of[row] for row in range(len(allowed)))
