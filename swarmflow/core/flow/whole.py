"""Whole-numbered flows through a window: what a linear program leaves fractional is solved again, bit by bit."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from swarmflow.core.flow.simplex import WHOLE, Path, PathProgram, Simplex

ENTERS, LEAVES = -1, -2
Hop = tuple[int, int, int, int]
"""(layer, from, to, commodity). ENTERS: from an entry to a node; LEAVES: from a node to an exit."""
Flows = dict[Hop, int]


def solve(problem: PathProgram, random: Random) -> Generator[None, None, Flows | None]:
    """Yields now and then; returns whole-numbered flows, the cheapest if the relaxation is whole, or None.

    Where it is not, the whole part of each path stays, or one unit of the fullest path where nothing is whole, and
    the rest is solved again (diving).
    """
    kept: Flows = {}
    while True:
        found = yield from Simplex(problem, random).solve()
        if found is None:
            return None
        hops = hops_of(problem, found)
        if all(abs(units - round(units)) <= WHOLE for units in hops.values()):
            return _sum(kept, hops)
        fixed = [(path, math.floor(units + WHOLE)) for path, units in found if units >= 1 - WHOLE]
        if not fixed:
            fixed = [(max(found, key=lambda each: (each[1], each[0].nodes))[0], 1)]
        kept = _sum(kept, hops_of(problem, fixed))
        problem = _without(problem, fixed, [path for path, units in found if units % 1 > WHOLE])


def hops_of(problem: PathProgram, found: Sequence[tuple[Path, float]]) -> dict[Hop, float]:
    """What these paths put on each hop."""
    hops: dict[Hop, float] = {}
    for path, units in found:
        commodity = problem.entries[path.entry].commodity
        mine = [(ENTERS, path.entry, path.nodes[0])]
        mine += [(path.layer + i, a, b) for i, (a, b) in enumerate(pairwise(path.nodes))]
        mine.append((LEAVES, path.nodes[-1], path.exit))
        for layer, a, b in mine:
            hops[layer, a, b, commodity] = hops.get((layer, a, b, commodity), 0.0) + units
    return hops


def _sum(kept: Flows, hops: Mapping[Hop, float]) -> Flows:
    both = {key: kept.get(key, 0) + round(hops.get(key, 0.0)) for key in {**kept, **hops}}
    return {key: units for key, units in both.items() if units}


def _without(problem: PathProgram, fixed: Sequence[tuple[Path, int]], known: list[Path]) -> PathProgram:
    """What is left to be solved when these flows stay."""
    entries = [replace(end) for end in problem.entries]
    exits = [replace(end) for end in problem.exits]
    capacity = [list(layer) for layer in problem.capacity]
    for path, units in fixed:
        entries[path.entry].count -= units
        exits[path.exit].count -= units
        for i, node in enumerate(path.nodes):
            capacity[path.layer + i][node] -= units
    return PathProgram(capacity, problem.arcs, entries, exits, known)
