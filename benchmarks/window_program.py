"""The linear program of a window: the flow router's own solver beside HiGHS, on the same instances.

    python -m benchmarks.window_program [--nodes 24,60,96] [--data-nodes 4] [--instances 3]
    python -m benchmarks.window_program --swarm examples/thousand.toml

An instance is drawn, or taken from a simulated swarm whose router is flow: of the windows that its peers solved, so
many, evenly spread over its life. A drawn window is three stages of so many nodes in all. Every unit that arrives from
the stage before, or from a data node, goes through one node a stage and on to the stage after. HiGHS (through scipy)
gets the same problem as a multi-commodity flow over links, which is how it is written down for a general solver; the
own solver generates paths. HiGHS starts from nothing; the own solver does too, and once more from paths that are known
("warm"): those that units take now in the swarm's windows, and those that were best before each cost changed by up to a
tenth in drawn ones.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp
from scipy.sparse import coo_array

from swarmflow.core.routing.flow import window as router_window
from swarmflow.core.routing.flow.simplex import INFINITE, NodePath, Numbers, PathProgram, Simplex, Terminal
from swarmflow.core.routing.flow.whole import ENTERS, LEAVES, Flows, solve
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.scenario import load

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
                if end.cost[node] == INFINITE:
                    continue
                column = self._column(float(end.cost[node]))
                self._cells.append((row, column, 1.0))
                self._cells.append((balance + place * self.nodes + at, column, 1.0 if enters else -1.0))
                if enters:
                    self._loads.append((at, column, 1.0))
        for place in range(len(commodities)):
            for layer, costs in enumerate(problem.arcs):
                for to, of in np.argwhere(costs < INFINITE).tolist():
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


def windows_of(scenario: Path, most: int) -> list[PathProgram]:
    """Return so many of the windows that a simulated swarm solves, evenly spread over its life."""
    found: list[PathProgram] = []

    def recorded(problem: PathProgram, random: Random) -> Generator[None, None, Flows | None]:
        found.append(problem)
        return solve(problem, random)

    described = load(scenario)
    described = replace(described, run=replace(described.run, router="flow"))
    with patch.object(router_window, "solve", recorded):
        report = Simulation(described, described.run.seed, "swarmflow", None).run()
    print(f"{scenario.name}: {report.outcome}, {len(found):,} windows were solved")
    return [found[len(found) * i // most] for i in range(most)] if len(found) > most else found


def compare(instances: Sequence[PathProgram], title: str) -> None:
    """Print the CPU seconds of each solver over all instances, and the cost beside the relaxation's.

    An instance that a solver gives up adds its seconds and no cost.
    """
    spent: dict[str, list[tuple[float, float]]] = {}
    columns = 0
    for problem in instances:
        program = LinkProgram(problem)
        columns = max(columns, len(program.costs))
        solvers = {
            "own": partial(own, replace(problem, known=[]), Random(0)),
            "own, warm": partial(own, problem, Random(0)),
            "highs-ds": partial(relaxed, program, "highs-ds"),
            "highs-ipm": partial(relaxed, program, "highs-ipm"),
            "highs milp": partial(whole, program),
        }
        found = {name: timed(solver) for name, solver in solvers.items()}
        _, least = found["highs-ds"]
        for name, (seconds, value) in found.items():
            spent.setdefault(name, []).append((seconds, value / least if least else 1.0))
    reference = sum(seconds for seconds, _ in spent["own"])
    print(f"{title}, up to {columns:,} columns of HiGHS:")
    for name, measured in spent.items():
        seconds = sum(s for s, _ in measured)
        costs = [value for _, value in measured if not math.isnan(value)]
        given_up = f", {len(measured) - len(costs)} given up" if len(costs) < len(measured) else ""
        times = f"{seconds / len(measured):8.4f} s a window {seconds / reference:7.2f} times own"
        print(f"  {name:<10} {times}; cost at most {max(costs):.4f} of the optimum{given_up}")


def main() -> None:
    """Print the CPU seconds of each solver, and the cost of whole units beside the relaxation."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.window_program", description=__doc__)
    parser.add_argument("--nodes", default="24,60,96")
    parser.add_argument("--data-nodes", type=int, default=4)
    parser.add_argument("--instances", type=int, default=3, help="of each size, or of the swarm's windows")
    parser.add_argument("--swarm", type=Path, help="a scenario; its windows instead of drawn ones")
    chosen = parser.parse_args()
    if chosen.swarm is not None:
        instances = windows_of(chosen.swarm, chosen.instances)
        sizes = sorted(sum(map(len, problem.capacity)) for problem in instances)
        title = (
            f"{len(instances)} windows of {sizes[0]} to {sizes[-1]} nodes, {statistics.median(sizes):g} in the middle"
        )
        compare(instances, title)
        return
    for nodes in (int(number) for number in chosen.nodes.split(",")):
        drawn = []
        for seed in range(chosen.instances):
            problem = window(nodes, chosen.data_nodes, Random(seed))
            drawn.append(replace(problem, known=before(problem, Random(seed))))
        compare(drawn, f"{nodes} nodes, {chosen.data_nodes} data nodes")


if __name__ == "__main__":
    main()
