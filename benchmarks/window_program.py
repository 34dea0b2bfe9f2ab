"""The linear program of a window: the flow router's own solver beside HiGHS, on the same instances.

    python -m benchmarks.window_program [--nodes 24,60,96] [--data-nodes 4] [--instances 3]

A window is three stages of so many nodes in all. Every unit that arrives from the stage before, or from a data node,
goes through one node a stage and on to the stage after. HiGHS (through scipy) gets the same problem as a
multi-commodity flow over links, which is how it is written down for a general solver; the own solver generates paths.
HiGHS starts from nothing; the own solver does too, and once more from the paths that were best before each cost changed
by up to a tenth: in a running swarm it starts from the paths that units take now.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp
from scipy.sparse import coo_array

from swarmflow.core.routing.flow.simplex import NodePath, Numbers, PathProgram, Simplex, Terminal
from swarmflow.core.routing.flow.whole import ENTERS, LEAVES, Flows, solve

STAGES = 3
CAPACITY_MAX = 8  # units of a node
COST_SIGMA = 1.0  # of the lognormal cost of a link


def window(nodes: int, data_nodes: int, random: Random) -> PathProgram:
    """Return an instance: three stages, lognormal costs, three quarters of the narrowest stage in use."""
    wide = nodes // STAGES
    capacity = [[random.randint(1, CAPACITY_MAX) for _ in range(wide)] for _ in range(STAGES)]

    def costs(*shape: int) -> Numbers:
        size = int(np.prod(shape))
        return np.array([random.lognormvariate(0.0, COST_SIGMA) for _ in range(size)]).reshape(shape)

    arcs = [costs(wide, wide) for _ in range(STAGES - 1)]
    units = int(0.75 * min(sum(layer) for layer in capacity))
    entries: list[Terminal] = []
    exits: list[Terminal] = []
    for commodity in range(data_nodes):
        mine = units // data_nodes
        for ends, layer in ((entries, 0), (exits, STAGES - 1)):
            left, senders = mine, max(1, wide // 2)
            for number in range(senders):
                count = left if number == senders - 1 else min(left, random.randint(0, 2 * mine // senders))
                left -= count
                if count:
                    ends.append(Terminal(commodity, layer, count, costs(wide)))
    return PathProgram(capacity, arcs, entries, exits)


class LinkProgram:
    """A window as a multi-commodity flow over links: a column for each link and commodity, and for each terminal."""

    def __init__(self, problem: PathProgram) -> None:
        self.costs: list[float] = []
        self._cells: list[tuple[int, int, float]] = []  # (row, column, coefficient)
        commodities = sorted({end.commodity for end in problem.entries})
        layers = [len(layer) for layer in problem.capacity]
        first = [sum(layers[:layer]) for layer in range(len(layers))]
        self.nodes = sum(layers)
        self.equal: list[float] = [float(end.count) for end in (*problem.entries, *problem.exits)]
        balance = len(self.equal)  # rows: terminals, then a balance for each commodity and node
        self.equal += [0.0] * (len(commodities) * self.nodes)
        self.capacity = [float(n) for layer in problem.capacity for n in layer]
        self._loads: list[tuple[int, int, float]] = []
        for row, (end, enters) in enumerate(
            [*((end, True) for end in problem.entries), *((end, False) for end in problem.exits)]
        ):
            place = commodities.index(end.commodity)
            for node in range(layers[end.layer]):
                at = first[end.layer] + node
                column = self._column(float(end.cost[node]))
                self._cells.append((row, column, 1.0))
                self._cells.append((balance + place * self.nodes + at, column, 1.0 if enters else -1.0))
                if enters:
                    self._loads.append((at, column, 1.0))
        for place in range(len(commodities)):
            for layer, costs in enumerate(problem.arcs):
                for to, of in np.ndindex(*costs.shape):
                    column = self._column(float(costs[to, of]))
                    here, there = first[layer] + of, first[layer + 1] + to
                    self._cells.append((balance + place * self.nodes + here, column, -1.0))
                    self._cells.append((balance + place * self.nodes + there, column, 1.0))
                    self._loads.append((there, column, 1.0))

    def _column(self, cost: float) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def matrices(self) -> tuple[coo_array, coo_array]:
        """Return the equalities and the loads of the nodes."""
        found = []
        for cells, rows in ((self._cells, len(self.equal)), (self._loads, self.nodes)):
            row, column, value = zip(*cells, strict=True)
            found.append(coo_array((value, (row, column)), shape=(rows, len(self.costs))))
        return found[0], found[1]


def relaxed(program: LinkProgram, method: str) -> float:
    """Return the least cost by HiGHS, fractions allowed."""
    equal, loads = program.matrices()
    found = linprog(
        program.costs, A_ub=loads.tocsr(), b_ub=program.capacity, A_eq=equal.tocsr(), b_eq=program.equal, method=method
    )
    return float(found.fun)


def whole(program: LinkProgram) -> float:
    """Return the least cost of whole units by HiGHS."""
    equal, loads = program.matrices()
    constraints = [
        LinearConstraint(equal.tocsr(), program.equal, program.equal),
        LinearConstraint(loads.tocsr(), -np.inf, program.capacity),
    ]
    found = milp(program.costs, constraints=constraints, integrality=np.ones(len(program.costs)))
    return float(found.fun)


def own(problem: PathProgram, random: Random) -> float:
    """Return the cost of whole units by the flow router's solver; nan where it gives up."""
    work = solve(problem, random)
    while True:
        try:
            next(work)
        except StopIteration as stop:
            flows: Flows | None = stop.value
            break
    return float("nan") if flows is None else cost(problem, flows)


def before(problem: PathProgram, random: Random) -> list[NodePath]:
    """Return the best paths of the same window with other costs."""

    def other(costs: Numbers) -> Numbers:
        factors: Numbers = np.array([random.uniform(0.9, 1.1) for _ in range(costs.size)]).reshape(costs.shape)
        return costs * factors

    entries, exits = ([replace(end, cost=other(end.cost)) for end in ends] for ends in (problem.entries, problem.exits))
    work = Simplex(
        PathProgram(problem.capacity, [other(arcs) for arcs in problem.arcs], entries, exits), random
    ).solve()
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return [path for path, _ in stop.value or ()]


def cost(problem: PathProgram, flows: Flows) -> float:
    """Return the cost of whole flows."""
    total = 0.0
    for (layer, a, b, _), units in flows.items():
        if layer == ENTERS:
            total += units * float(problem.entries[a].cost[b])
        elif layer == LEAVES:
            total += units * float(problem.exits[b].cost[a])
        else:
            total += units * float(problem.arcs[layer][b, a])
    return total


def timed(work: Callable[[], float]) -> tuple[float, float]:
    """Return the CPU seconds of this process, and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def main() -> None:
    """Print the CPU seconds of each solver, as medians, and the cost of whole units beside the relaxation."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.window_program", description=__doc__)
    parser.add_argument("--nodes", default="24,60,96")
    parser.add_argument("--data-nodes", type=int, default=4)
    parser.add_argument("--instances", type=int, default=3)
    chosen = parser.parse_args()
    for nodes in (int(number) for number in chosen.nodes.split(",")):
        rows: dict[str, list[tuple[float, float]]] = {}
        for seed in range(chosen.instances):
            problem = window(nodes, chosen.data_nodes, Random(seed))
            program = LinkProgram(problem)
            warm = replace(problem, known=before(problem, Random(seed)))
            found = {
                "own": timed(lambda: own(problem, Random(0))),  # noqa: B023
                "own, warm": timed(lambda: own(warm, Random(0))),  # noqa: B023
                "highs-ds": timed(lambda: relaxed(program, "highs-ds")),  # noqa: B023
                "highs-ipm": timed(lambda: relaxed(program, "highs-ipm")),  # noqa: B023
                "highs milp": timed(lambda: whole(program)),  # noqa: B023
            }
            least = found["highs-ds"][1]
            for name, (seconds, value) in found.items():
                rows.setdefault(name, []).append((seconds, value / least))
        reference = statistics.median(seconds for seconds, _ in rows["own"])
        print(f"{nodes} nodes, {chosen.data_nodes} data nodes, {len(program.costs):,} columns of HiGHS:")
        for name, measured in rows.items():
            seconds = statistics.median(s for s, _ in measured)
            worst = max(value for _, value in measured)
            print(
                f"  {name:<10} {seconds:8.3f} s {seconds / reference:7.1f} times own; cost {worst:.4f} of the optimum"
            )


if __name__ == "__main__":
    main()
