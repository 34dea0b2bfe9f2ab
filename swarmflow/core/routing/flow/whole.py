"""Integral flows through a window: a fractional solution of the linear program is fixed step by step (diving)."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from swarmflow.core.routing.flow.simplex import WHOLE, NodePath, PathProgram, Simplex

ENTERS, LEAVES = -1, -2
FlowArc = tuple[int, int, int, int]
"""(layer, from, to, commodity). Layer ENTERS: from an entry to a node; layer LEAVES: from a node to an exit."""
Flows = dict[FlowArc, int]  # units


def solve(problem: PathProgram, random: Random) -> Generator[None, None, Flows | None]:
    """Yield after each slice of work; return integral flows, optimal if the relaxation is integral; None: none found.

    If the relaxation is fractional, the integral part of each path is fixed, or one unit of the fullest path if no path
    has a whole unit; the rest is solved again (diving).
    """
    fixed_flows: Flows = {}
    while True:
        found = yield from Simplex(problem, random).solve()
        if found is None:
            return None
        hops = hops_of(problem, found)
        if all(abs(units - round(units)) <= WHOLE for units in hops.values()):
            return _sum(fixed_flows, hops)
        fixed = [(path, math.floor(units + WHOLE)) for path, units in found if units >= 1 - WHOLE]
        if not fixed:
            fixed = [(max(found, key=lambda each: (each[1], each[0].nodes))[0], 1)]
        fixed_flows = _sum(fixed_flows, hops_of(problem, fixed))
        problem = _without(problem, fixed, [path for path, units in found if units % 1 > WHOLE])


def hops_of(problem: PathProgram, found: Sequence[tuple[NodePath, float]]) -> dict[FlowArc, float]:
    """Return the units that these paths put on each hop."""
    hops: dict[FlowArc, float] = {}
    for path, units in found:
        commodity = problem.entries[path.entry].commodity
        steps = [(ENTERS, path.entry, path.nodes[0])]
        steps += [(path.layer + i, a, b) for i, (a, b) in enumerate(pairwise(path.nodes))]
        steps.append((LEAVES, path.nodes[-1], path.exit))
        for layer, a, b in steps:
            hops[layer, a, b, commodity] = hops.get((layer, a, b, commodity), 0.0) + units
    return hops


def _sum(fixed_flows: Flows, hops: Mapping[FlowArc, float]) -> Flows:
    """Return the sum of both, in whole units."""
    both = {key: fixed_flows.get(key, 0) + round(hops.get(key, 0.0)) for key in {**fixed_flows, **hops}}
    return {key: units for key, units in both.items() if units}


def _without(problem: PathProgram, fixed: Sequence[tuple[NodePath, int]], known: list[NodePath]) -> PathProgram:
    """Return the program for the flows that are not fixed. known: paths with which its solution begins."""
    entries = [replace(end) for end in problem.entries]
    exits = [replace(end) for end in problem.exits]
    capacity = [list(layer) for layer in problem.capacity]
    for path, units in fixed:
        entries[path.entry].count -= units
        exits[path.exit].count -= units
        for i, node in enumerate(path.nodes):
            capacity[path.layer + i][node] -= units
    return PathProgram(capacity, problem.arcs, entries, exits, known)
