"""DT-FM's scheduler: assigns devices to pipelines at the least communication cost (Yuan et al., 2022, section 3.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from math import comb, factorial
from random import Random

import numpy as np

from swarmflow.planning.arrangement import Arrangement, Group, Problem, swapped
from swarmflow.planning.swap_costs import SwapCosts

ENUMERATED_MAX = 3000  # partitions up to which all are tried
POPULATION = 24  # partitions that the genetic algorithm keeps
GENERATIONS = 150  # of one child each
CANDIDATES = 4  # swaps of the largest gains, of which the first that helps is made


def arrange(problem: Problem, random: Random) -> Arrangement:
    """Return the cheapest arrangement where all can be tried; else the best that the genetic algorithm finds."""
    search = GeneticSearch(problem, random)
    return problem.arrangement(search.best())


class LocalSearch(StrEnum):
    """How a partition is improved before it joins the population."""

    FASTEST = "fastest"  # the paper's: swaps of the fastest links of two groups
    KERNIGHAN_LIN = "kernighan-lin"  # swaps by the gain of the graph partition, which the paper compares with
    NONE = "none"


@dataclass
class GeneticSearch:
    """Searches partitions: tuples of groups of devices, in the order of their stages. Devices in no group are spare."""

    problem: Problem
    random: Random
    local: LocalSearch = LocalSearch.FASTEST
    least_s: list[float] = field(init=False, default_factory=list)  # cost of the best, at first and by generation

    def best(self) -> tuple[Group, ...]:
        """Return the groups of the best arrangement that was found."""
        if self._partition_count() <= ENUMERATED_MAX:
            every = self._all_partitions(self.problem.free, self.problem.pinned_groups())
            return min(map(self.problem.ordered, every) if self._unordered else every, key=self.problem.cost_s)
        return min((self._descended(groups) for groups in self.evolved()), key=self.problem.cost_s)

    def evolved(self) -> list[tuple[Group, ...]]:
        """Return the population of the last generation."""
        population = [self._improved(self._random_partition()) for _ in range(POPULATION)]
        costs = [self.problem.cost_s(groups) for groups in population]
        self.least_s = [min(costs)]
        for _ in range(GENERATIONS):
            one, other = self.random.sample(population, 2)
            child = self._improved(self._crossover(one, other))
            cost_s, worst = self.problem.cost_s(child), max(range(POPULATION), key=costs.__getitem__)
            if cost_s < costs[worst] and child not in population:
                population[worst], costs[worst] = child, cost_s
            self.least_s.append(min(costs))
        return population

    # --- partitions ---------------------------------------------------------------------------------------------------

    @property
    def _unordered(self) -> bool:
        """Whether only the order of least pipeline cost counts: no stage differs from another one."""
        return not self.problem.pinned and len(set(self.problem.gradient_bytes)) == 1

    def _partition_count(self) -> int:
        """Return the number of partitions."""
        left, count = len(self.problem.free), 1
        for group in self.problem.pinned_groups():
            count *= comb(left, self.problem.pipelines - len(group))
            left -= self.problem.pipelines - len(group)
        return count // factorial(self.problem.stages) if self._unordered else count

    def _all_partitions(self, free: list[int], groups: list[list[int]], stage: int = 0) -> Iterator[tuple[Group, ...]]:
        """Yield the partitions that fill the groups, from `stage` on, with free devices; if unordered, each once."""
        if stage == len(groups):
            yield tuple(tuple(sorted(group)) for group in groups)
            return
        for chosen in combinations(free, self.problem.pipelines - len(groups[stage])):
            if self._unordered and stage and chosen[0] < groups[stage - 1][0]:
                continue  # `ordered` finds the best order of what was yielded already
            rest = [device for device in free if device not in chosen]
            filled = [group if number != stage else [*group, *chosen] for number, group in enumerate(groups)]
            yield from self._all_partitions(rest, filled, stage + 1)

    def _random_partition(self) -> tuple[Group, ...]:
        free = self.problem.free
        self.random.shuffle(free)
        groups = self.problem.pinned_groups()
        for group in groups:
            while len(group) < self.problem.pipelines:
                group.append(free.pop())
        return tuple(tuple(sorted(group)) for group in groups)

    def _crossover(self, one: tuple[Group, ...], other: tuple[Group, ...]) -> tuple[Group, ...]:
        """Return one parent with about half of the devices moved to their stage in the other, each by a swap."""
        groups = one
        for stage, group in enumerate(other):
            for device in group:
                partners = [d for d in groups[stage] if d not in group and d not in self.problem.pinned]
                movable = device not in groups[stage] and device not in self.problem.pinned and bool(partners)
                if movable and self.random.random() < 0.5:
                    groups = swapped(groups, device, self.random.choice(partners))
        return groups

    # --- local search -------------------------------------------------------------------------------------------------

    def _improved(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """Swap by the largest gains, as long as the cost falls."""
        groups = self.problem.ordered(groups)
        cost_s = self.problem.cost_s(groups)
        while True:
            gains = sorted(self._gains(groups), reverse=True)[:CANDIDATES]
            for _, one, other in gains:
                improved = self.problem.ordered(swapped(groups, one, other))
                if (less_s := self.problem.cost_s(improved)) < cost_s:
                    groups, cost_s = improved, less_s
                    break
            else:
                return groups

    def _gains(self, groups: tuple[Group, ...]) -> Iterator[tuple[float, int, int]]:
        """Yield (gain, one device, other device) of the swaps that the local search takes into account."""
        if self.local is LocalSearch.FASTEST:
            yield from self._of_fastest(groups)
        elif self.local is LocalSearch.KERNIGHAN_LIN:
            yield from self._of_partition(groups)

    def _of_partition(self, groups: tuple[Group, ...]) -> Iterator[tuple[float, int, int]]:
        """Yield every swap of two groups, with Kernighan and Lin's gain (section 3.4).

        The weight of a link is the time that it takes, negative, so that a group keeps fast links.
        """
        stage_of = {device: stage for stage, group in enumerate(groups) for device in group}
        weights = -self.problem.transfer_s
        to_group = np.array([weights[:, list(group)].sum(axis=1) for group in groups])  # `[group][device]`
        free = [device for device in stage_of if device not in self.problem.pinned]
        for one, other in combinations(free, 2):
            here, there = stage_of[one], stage_of[other]
            if here != there:
                gain = to_group[there, one] - to_group[here, one] + to_group[here, other] - to_group[there, other]
                yield float(gain - 2 * weights[one, other]), one, other

    def _of_fastest(self, groups: tuple[Group, ...]) -> Iterator[tuple[float, int, int]]:
        """Yield the swaps between two groups' fastest links, with the paper's gain in seconds."""
        fastest = [self._fastest(group) for group in groups]
        for number, pair in enumerate(fastest):
            for other_number, other_pair in enumerate(fastest[number + 1 :], number + 1):
                for one, partner in (pair, pair[::-1]):
                    for other, other_partner in (other_pair, other_pair[::-1]):
                        if one not in self.problem.pinned and other not in self.problem.pinned:
                            gain = self._mean_s(one, groups[other_number]) - self.problem.transfer_s[one, partner]
                            gain += self._mean_s(other, groups[number]) - self.problem.transfer_s[other, other_partner]
                            yield float(gain), one, other

    def _fastest(self, group: Group) -> tuple[int, int]:
        """Return the two devices of a group with the fastest link; a single device is its own partner."""
        return min(combinations(group, 2), key=lambda pair: self.problem.transfer_s[pair], default=(group[0], group[0]))

    def _mean_s(self, device: int, group: Group) -> float:
        """Return the mean transfer time between a device and those of a group."""
        return float(np.mean([self.problem.transfer_s[device, other] for other in group]))

    def _descended(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """Swap any two devices, also spare ones, as long as the cost falls: an addition in the paper's favour."""
        costs, better = SwapCosts(self.problem, groups), True
        while better:
            better = False
            for one, other in combinations(self.problem.free, 2):
                better |= not self.problem.alike(one, other) and costs.swap(one, other)
        return costs.groups
