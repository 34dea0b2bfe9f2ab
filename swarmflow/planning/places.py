"""The strategy `places`: devices that are near each other become groups, pipelines, or some of both; then swaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from swarmflow.planning.arrangement import Arrangement, Group, Matrix, Problem, swapped
from swarmflow.planning.matching import matching

EVALUATIONS_MAX = 500  # arrangements of which the cost is computed
SHAKEN = 3  # swaps at random, where no single swap helps any more


def arrange(problem: Problem, random: Random, evaluations_max: int = EVALUATIONS_MAX) -> Arrangement:
    """Return the cheapest arrangement of those that follow the places of the devices, improved by swaps.

    The devices are put into a row in which neighbours are near each other (the leaves of a hierarchical clustering of
    their links). Pieces of that row become L stages of all pipelines, each pipeline's L devices next to each other: for
    L = 1 each group is from one place, and pipelines cross the long links; for L = all stages it is the other way
    round; between them, chains of L stages share a place. Which one is best depends on the sizes of gradients and of
    activations, so one L for each number of chains is evaluated. What the best one costs most is then improved, as long
    as evaluations are left: a device of the slowest exchange or hop is swapped for another. Where devices are pinned to
    stages each group begins with its own, and takes the next ones of the row.
    """
    return problem.arrangement(_SwapSearch(problem, random, problem.evaluated + evaluations_max).best())


def improved(problem: Problem, random: Random, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Return these groups, improved by swaps until none helps or half of EVALUATIONS_MAX costs were computed."""
    search = _SwapSearch(problem, random, problem.evaluated + EVALUATIONS_MAX // 2)
    return search.improved(groups, problem.cost_s(groups))[0]


def row_of(problem: Problem) -> list[int]:
    """Return all devices so that neighbours are near each other: the leaves of a hierarchical clustering."""
    links_s = _links_s(problem)
    if len(links_s) < 2:
        return list(range(len(links_s)))
    return [int(leaf) for leaf in leaves_list(linkage(squareform(links_s, checks=False), "average"))]


def _cut(row: list[int], sizes: list[int]) -> list[list[int]]:
    """Return the row in pieces of these sizes."""
    ends = list(accumulate(sizes))
    return [row[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _links_s(problem: Problem) -> Matrix:
    """Return how far apart devices are: what they take for gradients, and for activations, `[device][device]`."""
    links_s: Matrix = problem.exchange_s(max(problem.gradient_bytes)) + problem.transfer_s
    np.fill_diagonal(links_s, 0.0)
    return links_s


@dataclass
class _SwapSearch:
    problem: Problem
    random: Random
    evaluated_max: int

    def best(self) -> tuple[Group, ...]:
        """Return the best groups that were found, in the order of their stages."""
        problem = self.problem
        costs_s = {groups: problem.cost_s(groups) for groups in map(problem.ordered, self._candidates(self._row()))}
        least = min(costs_s, key=costs_s.__getitem__)
        begun, begun_s, least_s = least, costs_s[least], costs_s[least]
        while problem.evaluated < self.evaluated_max:
            found, found_s = self.improved(begun, begun_s)
            if found_s < least_s:
                least, least_s = found, found_s
            if problem.evaluated < self.evaluated_max:
                begun = self._shaken(least)
                begun_s = problem.cost_s(begun)
        return least

    def _shaken(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """Return the groups with some devices swapped at random."""
        free = self.problem.free
        for _ in range(SHAKEN):
            groups = swapped(groups, *self.random.sample(free, 2)) if len(free) > 1 else groups
        return self.problem.ordered(groups)

    def _row(self) -> list[int]:
        """Return as many devices as are needed, neighbours next to each other; those with the worst links are spare."""
        problem = self.problem
        nearest_s = np.sort(_links_s(problem), axis=1)[:, : problem.pipelines + problem.stages - 1].sum(axis=1)
        chosen = {device for group in problem.pinned_groups() for device in group}
        missing = problem.pipelines * problem.stages - len(chosen)
        chosen.update(sorted(problem.free, key=lambda device: float(nearest_s[device]))[:missing])
        return [device for device in row_of(problem) if device in chosen]

    def _candidates(self, row: list[int]) -> Iterator[list[Group]]:
        """Yield the groups for each number of stages that share a place, the least of those with as many chains."""
        stages_of = {-(-self.problem.stages // chains) for chains in range(1, self.problem.stages + 1)}
        for length in sorted(stages_of):
            chains = [length] * (self.problem.stages // length)
            chains += [self.problem.stages % length] * (self.problem.stages % length > 0)
            sizes = [chain * self.problem.pipelines for chain in chains]
            for pieces in (_cut(row, sizes), self._gathered(row, sizes)):
                stages = [
                    piece[stage::chain] for piece, chain in zip(pieces, chains, strict=True) for stage in range(chain)
                ]
                yield [tuple(sorted(stage)) for stage in self._with_pinned(stages)]

    def _gathered(self, row: list[int], sizes: list[int]) -> list[list[int]]:
        """Return the row in pieces: of what is left, the device with the worst links, and those that are next to it.

        A place whose devices are no multiple of a piece's does not shift all others, as it does where the row is cut.
        """
        links_s, left, pieces = _links_s(self.problem), list(row), []
        for size in sizes:
            near_s = np.sort(links_s[np.ix_(left, left)], axis=1)[:, :size].sum(axis=1)
            worst = left[int(near_s.argmax())]
            piece = {left[place] for place in np.argsort(links_s[worst, left], kind="stable")[:size]}
            pieces.append([device for device in left if device in piece])
            left = [device for device in left if device not in piece]
        return pieces

    def _with_pinned(self, stages: list[list[int]]) -> list[list[int]]:
        """Return the groups with each pinned device at its stage, in the place of one that is free."""
        pinned = self.problem.pinned
        for device, stage in pinned.items():
            here = next((number for number, group in enumerate(stages) if device in group), None)
            if here in (stage, None):
                continue
            partner = next((other for other in stages[stage] if pinned.get(other) != stage), None)
            if partner is not None:
                stages[here][stages[here].index(device)] = partner
                stages[stage][stages[stage].index(partner)] = device
        return stages

    def improved(self, groups: tuple[Group, ...], cost_s: float) -> tuple[tuple[Group, ...], float]:
        """Swap devices of what costs most, as long as that helps and evaluations are left; return also the cost."""
        problem = self.problem
        better = True
        while better:
            better = False
            pairs = sorted(set(self._pairs(groups)))
            for pair in self.random.sample(pairs, len(pairs)):
                if problem.evaluated >= self.evaluated_max:
                    break
                other = swapped(groups, *pair)
                if (other_s := problem.cost_s(other)) < cost_s:
                    groups, cost_s, better = *self._reordered(other, other_s), True
                    break
        return groups, cost_s

    def _reordered(self, groups: tuple[Group, ...], cost_s: float) -> tuple[tuple[Group, ...], float]:
        """Return the groups in a better order, if there is one, and their cost."""
        ordered = self.problem.ordered(groups)
        if ordered == groups or self.problem.evaluated >= self.evaluated_max:
            return groups, cost_s
        ordered_s = self.problem.cost_s(ordered)
        return (ordered, ordered_s) if ordered_s < cost_s else (groups, cost_s)

    def _pairs(self, groups: tuple[Group, ...]) -> Iterator[tuple[int, int]]:
        """Yield the swaps of a device of the slowest exchange, or of a slowest hop, for one of another group."""
        problem, stage_of = self.problem, {device: stage for stage, group in enumerate(groups) for device in group}
        for one in self._worst(groups):
            if one not in problem.pinned:
                others = (other for other in problem.free if stage_of.get(other) != stage_of[one])
                yield from ((one, other) for other in others if not problem.alike(one, other))

    def _worst(self, groups: tuple[Group, ...]) -> set[int]:
        """Return the device whose exchange takes longest, and both ends of the slowest transfer of each hop."""
        problem = self.problem
        stage = max(range(len(groups)), key=lambda number: problem.data_parallel_s(groups[number], number))
        group = list(groups[stage])
        exchange_s = problem.exchange_s(problem.gradient_bytes[stage])[np.ix_(group, group)].sum(axis=1)
        worst = {group[int(exchange_s.argmax())]}
        for here, there in pairwise(groups):
            links_s = problem.transfer_s[np.ix_(here, there)]
            columns = matching(links_s)
            row = max(range(len(here)), key=lambda number: links_s[number, columns[number]])
            worst |= {here[row], there[columns[row]]}
        return worst
