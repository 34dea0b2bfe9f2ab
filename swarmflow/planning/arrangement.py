"""The communication cost of devices arranged in pipelines, by DT-FM's model (Yuan et al., 2022, section 3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from swarmflow.errors import ConfigError
from swarmflow.planning.matching import matching
from swarmflow.planning.stage_order import order_of

Matrix = NDArray[np.float64]
Group = tuple[int, ...]  # the devices of one stage, sorted


@dataclass(frozen=True)
class Arrangement:
    """Pipelines of devices, and what they cost."""

    pipelines: tuple[tuple[int, ...], ...]  # devices, `[pipeline][stage]`
    synchronised_s: float  # the exchange of gradients, of the slowest stage (equation 2)
    pipelined_s: float  # the slowest transfers between the stages, together (equation 4)

    @property
    def cost_s(self) -> float:
        """Return the communication cost (equation 1)."""
        return self.synchronised_s + self.pipelined_s

    @property
    def groups(self) -> tuple[Group, ...]:
        """Return the devices of each stage."""
        return tuple(tuple(sorted(group)) for group in zip(*self.pipelines, strict=True))

    @property
    def stages(self) -> dict[int, int]:
        """Return the stage of each device that has one."""
        return {device: stage for pipeline in self.pipelines for stage, device in enumerate(pipeline)}


@dataclass
class Problem:
    """The choice of a device for each stage of each pipeline.

    Raises ConfigError when there are fewer devices than pipelines * stages (more stay spare), when so many are pinned
    to one stage that others lack some, and when two devices have no link.
    """

    latency_s: Sequence[Sequence[float]]  # `[from][to]`
    bytes_per_s: Sequence[Sequence[float]]  # `[from][to]`, may be infinite
    pipelines: int  # number of pipelines, D_DP
    stages: int  # number of stages, D_PP
    activation_bytes: float  # size of an activation or its gradient, c_PP
    gradient_bytes: Sequence[float]  # size of the gradients of each stage, c_DP
    pinned: dict[int, int] = field(default_factory=dict)  # device -> the stage that it serves
    transfer_s: Matrix = field(init=False)  # time of an activation and its gradient, `[from][to]`
    evaluated: int = field(init=False, default=0)  # arrangements whose cost was asked for
    _latency_s: Matrix = field(init=False)  # of both directions, as the next
    _s_per_byte: Matrix = field(init=False)
    _exchanges_s: dict[float, Matrix] = field(init=False, default_factory=dict)  # by the size of the gradients
    _kind: list[int] = field(init=False)  # for each device the first device with the same links
    _data_parallel_cache: dict[tuple[Group, float], float] = field(init=False, default_factory=dict)
    _kinds_cache: dict[Group, Group] = field(init=False, default_factory=dict)
    _matched_cache: dict[tuple[Group, Group], float] = field(init=False, default_factory=dict)
    _least_cache: dict[tuple[Group, Group], float] = field(init=False, default_factory=dict)  # of bounds

    def __post_init__(self) -> None:
        if self.pipelines < 1 or len(self.latency_s) < self.pipelines * self.stages:
            raise ConfigError(f"{self.stages} stages need at least as many peers, not {len(self.latency_s)}")
        latency_s, rate = np.asarray(self.latency_s, dtype=float), np.asarray(self.bytes_per_s, dtype=float)
        with np.errstate(divide="ignore"):  # devices without a link are infinitely far apart
            self._latency_s, self._s_per_byte = (latency_s + latency_s.T) / 2, 2 / (rate + rate.T)
        for links in (self._latency_s, self._s_per_byte):
            np.fill_diagonal(links, 0.0)
        if not (np.isfinite(self._latency_s).all() and np.isfinite(self._s_per_byte).all()):
            raise ConfigError("every two peers need a link with a bandwidth above 0 and a finite latency")
        missing = sum(self.pipelines - len(group) for group in self.pinned_groups())
        if missing > len(self.free):
            raise ConfigError(
                f"{self.pipelines} pipelines of {self.stages} stages lack {missing - len(self.free)} peers: "
                "more ask for a stage than it takes"
            )
        self.transfer_s = 2 * (self._latency_s + self.activation_bytes * self._s_per_byte)
        self._kind = _kinds(self._latency_s, self._s_per_byte)

    @property
    def free(self) -> list[int]:
        """Return the devices that may serve any stage."""
        return [device for device in range(len(self.latency_s)) if device not in self.pinned]

    def pinned_groups(self) -> list[list[int]]:
        """Return the groups with only the pinned devices, as many as fit."""
        groups: list[list[int]] = [[] for _ in range(self.stages)]
        for device, stage in sorted(self.pinned.items()):
            if len(groups[stage]) < self.pipelines:
                groups[stage].append(device)
        return groups

    def filled(self, devices: Iterable[int]) -> tuple[Group, ...]:
        """Return the groups of the pinned devices, filled up with these in their order."""
        left, groups = deque(devices), self.pinned_groups()
        for group in groups:
            group += [left.popleft() for _ in range(self.pipelines - len(group))]
        return tuple(tuple(sorted(group)) for group in groups)

    def exchange_s(self, gradient_bytes: float) -> Matrix:
        """Return what two devices of one group take to exchange gradients of that size, `[from][to]` (equation 2)."""
        if gradient_bytes not in self._exchanges_s:
            exchange_s = 2 * (self._latency_s + gradient_bytes / self.pipelines * self._s_per_byte)
            np.fill_diagonal(exchange_s, 0.0)
            self._exchanges_s[gradient_bytes] = exchange_s
        return self._exchanges_s[gradient_bytes]

    def alike(self, one: int, other: int) -> bool:
        """Return whether two devices have the same links to all others, so that a swap changes nothing."""
        return self._kind[one] == self._kind[other]

    def data_parallel_s(self, group: Group, stage: int) -> float:
        """Return the cost of exchanging the gradients of a stage among its devices (equation 2)."""
        key = (group, self.gradient_bytes[stage])
        if key not in self._data_parallel_cache:
            exchange_s = self.exchange_s(self.gradient_bytes[stage])
            self._data_parallel_cache[key] = float(_of(exchange_s, group, group).sum(axis=1).max())
        return self._data_parallel_cache[key]

    def matched_s(self, one: Group, other: Group) -> float:
        """Return the slowest transfer of the best matching between the devices of two stages (equation 3)."""
        kinds = self._pair_of(one, other)
        if kinds not in self._matched_cache:
            costs = _of(self.transfer_s, one, other)
            self._matched_cache[kinds] = max(float(costs[row, column]) for row, column in enumerate(matching(costs)))
        return self._matched_cache[kinds]

    def least_matched_s(self, one: Group, other: Group) -> float:
        """Return a bound of `matched_s` from below: the worst of the devices' own best transfers."""
        kinds = self._pair_of(one, other)
        if kinds not in self._least_cache:
            costs = _of(self.transfer_s, one, other)
            self._least_cache[kinds] = float(max(costs.min(axis=0).max(), costs.min(axis=1).max()))
        return self._least_cache[kinds]

    def _pair_of(self, one: Group, other: Group) -> tuple[Group, Group]:
        """Return what the cost between two groups follows from: not their order, nor devices of one kind."""
        first, second = self._kinds_of(one), self._kinds_of(other)
        return (first, second) if first < second else (second, first)

    def _kinds_of(self, group: Group) -> Group:
        kinds = self._kinds_cache.get(group)
        if kinds is None:
            kinds = self._kinds_cache[group] = tuple(sorted(self._kind[device] for device in group))
        return kinds

    def cost_s(self, groups: Sequence[Group]) -> float:
        """Return the cost of these groups in this order of stages (equation 1)."""
        self.evaluated += 1
        return self.synchronised_s(groups) + self.pipelined_s(groups)

    def synchronised_s(self, groups: Sequence[Group]) -> float:
        """Return the cost of exchanging the gradients of all stages: of the slowest group."""
        return max(self.data_parallel_s(group, stage) for stage, group in enumerate(groups))

    def pipelined_s(self, groups: Sequence[Group]) -> float:
        """Return the cost of the pipelines through these groups in this order (equations 3 and 4)."""
        return sum(self.matched_s(one, other) for one, other in pairwise(groups))

    def ordered(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """Return the groups in the order of the least pipeline cost (equation 4); those with pinned devices stay.

        As in the paper: as if the gradients of all stages had one size.
        """
        fixed = {place: place for place, group in enumerate(groups) if any(device in self.pinned for device in group)}
        links_s = np.array([[0.0 if a == b else self.matched_s(a, b) for b in groups] for a in groups])
        return tuple(groups[number] for number in order_of(links_s, fixed))

    def arrangement(self, groups: Sequence[Group]) -> Arrangement:
        """Return the pipelines of these groups in this order of stages."""
        pipelines = [[device] for device in groups[0]]
        for one, other in pairwise(groups):
            chosen = matching(self.transfer_s[np.ix_(one, other)])
            successor = {device: other[chosen[row]] for row, device in enumerate(one)}
            for pipeline in pipelines:
                pipeline.append(successor[pipeline[-1]])
        return Arrangement(
            tuple(tuple(pipeline) for pipeline in pipelines), self.synchronised_s(groups), self.pipelined_s(groups)
        )


def _of(costs_s: Matrix, one: Group, other: Group) -> Matrix:
    """Return the part of a matrix with these rows and columns: as `numpy.ix_` does, which takes most of the time."""
    part: Matrix = costs_s[np.array(one)[:, None], np.array(other)]
    return part


def _kinds(latency_s: Matrix, s_per_byte: Matrix) -> list[int]:
    """Return for each device the first device with the same links to all others: the two cost the same anywhere."""
    kinds: list[int] = []
    for device in range(len(latency_s)):
        differs = latency_s[:device] != latency_s[device]
        differs |= s_per_byte[:device] != s_per_byte[device]
        differs[:, device] = False
        np.fill_diagonal(differs, False)
        kinds.append(next((other for other in range(device) if not differs[other].any()), device))
    return kinds


def swapped(groups: tuple[Group, ...], one: int, other: int) -> tuple[Group, ...]:
    """Return the groups with two devices exchanged."""
    changed = list(groups)
    for stage, group in enumerate(groups):
        if (one in group) != (other in group):
            leaves, comes = (one, other) if one in group else (other, one)
            changed[stage] = tuple(sorted([comes if device == leaves else device for device in group]))
    return tuple(changed)
