"""DT-FM's scheduler: devices into stages and pipelines at the least communication (Yuan et al., 2022, section 3.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, factorial
from random import Random

import numpy as np

from swarmflow.planning.arrangement import Arrangement, Group, Problem

ENUMERATED_MAX = 3000  # partitions up to which all are tried
ORDERED_MAX = 12  # stages up to which the best order is found exactly
POPULATION = 24
GENERATIONS = 150


def arrange(problem: Problem, random: Random) -> Arrangement:
    """Return the cheapest arrangement of all, where these are few; else the best that the genetic algorithm finds."""
    search = _Search(problem, random)
    return problem.arrangement(search.best())


@dataclass
class _Search:
    """Searches the partitions: tuples of groups, in the order of their stages. Devices in no group are spare."""

    problem: Problem
    random: Random

    def best(self) -> tuple[Group, ...]:
        """Return the groups of the best arrangement that was found."""
        if self._partitions() <= ENUMERATED_MAX:
            partitions = (self._ordered(groups) for groups in self._all(self._free(), self._empty()))
            return min(partitions, key=self.problem.cost_s)
        population = [self._improved(self._any()) for _ in range(POPULATION)]
        costs = [self.problem.cost_s(groups) for groups in population]
        for _ in range(GENERATIONS):
            one, other = self.random.sample(population, 2)
            child = self._improved(self._crossed(one, other))
            cost_s, worst = self.problem.cost_s(child), max(range(POPULATION), key=costs.__getitem__)
            if cost_s < costs[worst] and child not in population:
                population[worst], costs[worst] = child, cost_s
        return min((self._descended(groups) for groups in population), key=self.problem.cost_s)

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _free(self) -> list[int]:
        return [device for device in range(len(self.problem.latency_s)) if device not in self.problem.pinned]

    def _empty(self) -> list[list[int]]:
        """Return the groups with only the pinned devices, as many as fit."""
        groups: list[list[int]] = [[] for _ in range(self.problem.stages)]
        for device, stage in sorted(self.problem.pinned.items()):
            if len(groups[stage]) < self.problem.lines:
                groups[stage].append(device)
        return groups

    def _partitions(self) -> int:
        """Return the least number of partitions; they are ordered where devices are pinned."""
        left, count = len(self._free()), 1
        for group in self._empty():
            count *= comb(left, self.problem.lines - len(group))
            left -= self.problem.lines - len(group)
        return count if self.problem.pinned else count // factorial(self.problem.stages)

    def _all(self, free: list[int], groups: list[list[int]], stage: int = 0) -> Iterator[tuple[Group, ...]]:
        if stage == len(groups):
            yield tuple(tuple(sorted(group)) for group in groups)
            return
        alike = not self.problem.pinned and len(free) == self.problem.lines * (len(groups) - stage)
        for chosen in combinations(free, self.problem.lines - len(groups[stage])):
            if alike and chosen[0] != free[0]:
                break  # the order of groups is found later
            rest = [device for device in free if device not in chosen]
            filled = [group if number != stage else [*group, *chosen] for number, group in enumerate(groups)]
            yield from self._all(rest, filled, stage + 1)

    def _any(self) -> tuple[Group, ...]:
        free = self._free()
        self.random.shuffle(free)
        groups = self._empty()
        for group in groups:
            while len(group) < self.problem.lines:
                group.append(free.pop())
        return tuple(tuple(sorted(group)) for group in groups)

    def _crossed(self, one: tuple[Group, ...], other: tuple[Group, ...]) -> tuple[Group, ...]:
        """One parent, with about half of the devices brought to where the other has them, each by a swap."""
        groups = one
        for stage, group in enumerate(other):
            for device in group:
                there = [d for d in groups[stage] if d not in group and d not in self.problem.pinned]
                moves = device not in groups[stage] and device not in self.problem.pinned and bool(there)
                if moves and self.random.random() < 0.5:
                    groups = _swapped(groups, device, self.random.choice(there))
        return groups

    def _ordered(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The best order of stages: an open-loop travelling salesman (equation 4). Pinned groups keep their place.

        As in the paper it is the order of the least pipeline cost, as if all gradients had one size.
        """
        count = len(groups)
        if count > ORDERED_MAX:
            return tuple(groups)
        fixed = [any(device in self.problem.pinned for device in group) for group in groups]
        links_s = [[0.0 if a == b else self.problem.matched_s(a, b) for b in groups] for a in groups]
        reached: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        for group in range(count):
            if (not fixed[0] and not fixed[group]) or group == 0:
                reached[1 << group, group] = (0.0, (group,))
        for place in range(1, count):
            after: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
            for (used, last), (cost_s, order) in reached.items():
                for group in range(count):
                    allowed = group == place if fixed[place] or fixed[group] else True
                    if used >> group & 1 or not allowed:
                        continue
                    found = (cost_s + links_s[last][group], (*order, group))
                    key = (used | 1 << group, group)
                    if key not in after or found < after[key]:
                        after[key] = found
            reached = after
        _, order = min(reached.values())
        return tuple(groups[number] for number in order)

    # --- local search -------------------------------------------------------------------------------------------------

    def _improved(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """Swap by the paper's gain, which uses the fastest links within two groups, as long as the cost falls."""
        groups = self._ordered(groups)
        cost_s = self.problem.cost_s(groups)
        while True:
            gains = sorted(self._gains(groups), reverse=True)[:4]
            for _, one, other in gains:
                swapped = self._ordered(_swapped(groups, one, other))
                if (less_s := self.problem.cost_s(swapped)) < cost_s:
                    groups, cost_s = swapped, less_s
                    break
            else:
                return groups

    def _gains(self, groups: tuple[Group, ...]) -> Iterator[tuple[float, int, int]]:
        fastest = [self._fastest(group) for group in groups]
        for number, here in enumerate(fastest):
            for other, there in enumerate(fastest[number + 1 :], number + 1):
                for one, partner in (here, here[::-1]):
                    for two, companion in (there, there[::-1]):
                        if one not in self.problem.pinned and two not in self.problem.pinned:
                            gain = self._mean_s(one, groups[other]) - self.problem.transfer_s[one, partner]
                            gain += self._mean_s(two, groups[number]) - self.problem.transfer_s[two, companion]
                            yield float(gain), one, two

    def _fastest(self, group: Group) -> tuple[int, int]:
        """Return the two devices of a group with the fastest link; a single device is its own partner."""
        return min(combinations(group, 2), key=lambda pair: self.problem.transfer_s[pair], default=(group[0], group[0]))

    def _mean_s(self, device: int, group: Group) -> float:
        return float(np.mean([self.problem.transfer_s[device, other] for other in group]))

    def _descended(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """Swap any two devices, also spare ones, as long as the cost falls: an addition in the paper's favour."""
        cost_s, better = self.problem.cost_s(groups), True
        while better:
            better = False
            free = self._free()
            for one, other in combinations(free, 2):
                swapped = _swapped(groups, one, other)
                if swapped != groups and (less_s := self.problem.cost_s(swapped)) < cost_s:
                    groups, cost_s, better = swapped, less_s, True
        return groups


def _swapped(groups: tuple[Group, ...], one: int, other: int) -> tuple[Group, ...]:
    """Return the groups with two devices exchanged."""
    change = {one: other, other: one}
    if any(one in group and other in group for group in groups):
        return groups
    return tuple(
        tuple(sorted(change.get(device, device) for device in group)) if one in group or other in group else group
        for group in groups
    )
