"""What groups cost with two devices exchanged: only what an exchange changes is computed anew."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from itertools import pairwise

from swarmflow.planning.arrangement import Group, Problem, swapped

ROUNDED = 1e-9  # relative: what the order of a sum may change; a bound has to be above a cost by more


@dataclass
class SwapCosts:
    """Groups in the order of their stages, what they cost, and their exchanges that cost less.

    Of an arrangement that is far too dear a bound suffices: matchings are most of what a cost takes to compute.
    """

    problem: Problem
    begin: InitVar[tuple[Group, ...]]
    groups: tuple[Group, ...] = field(init=False)
    cost_s: float = field(init=False)  # of the groups (equation 1)
    _stage_of: dict[int, int] = field(init=False)  # of each device in a group
    _exchanges_s: list[float] = field(init=False)  # of gradients, by stage
    _hops_s: list[float] = field(init=False)  # from each stage to the next one

    def __post_init__(self, begin: tuple[Group, ...]) -> None:
        self._take(begin, self.problem.cost_s(begin))

    def swap(self, one: int, other: int) -> bool:
        """Exchange two devices, of which one may be spare, if that costs less. Return whether it was done."""
        stages = {self._stage_of.get(one), self._stage_of.get(other)}
        if len(stages) == 1:
            return False  # of one group, or both are spare
        self.problem.evaluated += 1
        groups = swapped(self.groups, one, other)
        changed = sorted(stage for stage in stages if stage is not None)
        exchanges_s = list(self._exchanges_s)
        for stage in changed:
            exchanges_s[stage] = self.problem.data_parallel_s(groups[stage], stage)
        synchronised_s = max(exchanges_s)
        if synchronised_s >= self.cost_s or self._is_dearer(groups, changed, synchronised_s):
            return False
        cost_s = synchronised_s + self.problem.pipelined_s(groups)
        if cost_s >= self.cost_s:
            return False
        self._take(groups, cost_s)
        return True

    def _is_dearer(self, groups: tuple[Group, ...], changed: list[int], synchronised_s: float) -> bool:
        """Return whether a bound of the cost is above the present cost. changed: stages with other devices."""
        hops_s = list(self._hops_s)
        for hop in {hop for stage in changed for hop in (stage - 1, stage) if 0 <= hop < len(hops_s)}:
            hops_s[hop] = self.problem.least_matched_s(groups[hop], groups[hop + 1])
        return synchronised_s + sum(hops_s) > self.cost_s * (1 + ROUNDED)

    def _take(self, groups: tuple[Group, ...], cost_s: float) -> None:
        self.groups, self.cost_s = groups, cost_s
        self._stage_of = {device: stage for stage, group in enumerate(groups) for device in group}
        self._exchanges_s = [self.problem.data_parallel_s(group, stage) for stage, group in enumerate(groups)]
        self._hops_s = [self.problem.matched_s(one, other) for one, other in pairwise(groups)]
