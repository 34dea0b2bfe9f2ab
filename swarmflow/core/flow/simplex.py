"""The cheapest paths through a window for all data nodes at once: a linear program over paths.

The program has a row for each terminal and each node, and a column for each path. Columns are not listed but found: the
path of least reduced cost is a shortest path (column generation). The relaxation is nearly always whole-numbered;
`whole.py` rounds what is not.

In numpy, by element alone (no products of matrices): each number comes out the same on any machine. With lists of
numbers a window of 300 nodes took 30 times as long.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

INFINITE = float("inf")
EPSILON = 1e-7  # of a reduced cost, relative to the largest cost
NOISE = 1e-6  # on costs, relative to the largest, so that one optimum alone remains
SLACK = 1e-5  # on capacities, against cycling
WHOLE = 0.01  # how far from a whole number a flow may be
PIVOTS_A_ROW = 40  # more are not tried

Numbers = NDArray[np.float64]


@dataclass(slots=True)
class Terminal:
    """Where units of one commodity come into the window, or leave it: so many, at one layer, at that cost per node."""

    commodity: int
    layer: int
    count: int
    cost: Numbers


@dataclass(frozen=True, slots=True)
class Path:
    """From an entry through `nodes`, one a layer from `layer` on, to an exit."""

    entry: int
    exit: int
    layer: int
    nodes: tuple[int, ...]


@dataclass(slots=True)
class PathProgram:
    """`capacity[layer][node]`; `arcs[layer][to, from]`: the cost from a node of this layer to one of the next.

    known: paths that are good to begin with.
    """

    capacity: list[list[int]]
    arcs: list[Numbers]
    entries: list[Terminal]
    exits: list[Terminal]
    known: list[Path] = field(default_factory=list)


@dataclass(slots=True)
class Column:
    """rows: where it has a 1. cost: with the noise."""

    path: Path
    cost: float
    rows: tuple[int, ...]


class Pool:
    """Columns that may be brought in, each once. rows: of the program, which has `size`."""

    def __init__(self, columns: Sequence[Column], size: int) -> None:
        self.columns = columns
        self.costs = np.array([column.cost for column in columns])
        width = max((len(column.rows) for column in columns), default=0)
        # A shorter column has a 1 in a row beyond the program, whose price is 0.
        padded = [column.rows + (size,) * (width - len(column.rows)) for column in columns]
        self.rows = np.array(padded, dtype=np.intp).reshape(len(columns), width).T

    def least(self, duals: Numbers) -> tuple[float, int]:
        """The least reduced cost and the number of that column; (0.0, -1): none is left. duals: and a 0."""
        if not self.columns:
            return 0.0, -1
        prices = np.zeros(len(self.columns))
        for row in self.rows:
            prices += duals[row]
        reduced = self.costs - prices
        number = int(reduced.argmin())
        return float(reduced[number]), number

    def take(self, number: int) -> Column:
        """That one, which is not in it any more."""
        self.costs[number] = INFINITE
        return self.columns[number]


@dataclass(slots=True)
class Ends:
    """The terminals of one commodity at one layer. numbers: of the terminals. costs: [terminal, node]."""

    layer: int
    numbers: list[int]
    costs: Numbers


class Simplex:
    """Revised simplex with the inverse of the basis kept; iterate `solve` to its end.

    A slice of work is a pivot, or a search for columns: a fraction of a millisecond in a window of 300 nodes.
    """

    def __init__(self, problem: PathProgram, random: Random) -> None:
        self.problem = problem
        self.random = random
        self.first_node = len(problem.entries) + len(problem.exits)
        self.first_row: list[int] = []  # of the nodes of each layer
        at = self.first_node
        for layer in problem.capacity:
            self.first_row.append(at)
            at += len(layer)
        self.size = at
        self.pivots = 0

    def solve(self) -> Generator[None, None, list[tuple[Path, float]] | None]:
        """Yields after each slice; returns the cheapest flows, as units on paths, or None."""
        yield from self._prepare()
        limit = -EPSILON * self.largest
        pool = Pool([self._column(path) for path in self.problem.known], self.size)
        while True:
            moved = False
            while self._enter(pool, limit):
                moved = True
                yield
                if self.pivots > PIVOTS_A_ROW * self.size:
                    return None
            found: list[Column] = []
            for entries, exits in self.commodities:
                found += self._shortest(entries, exits, limit)
                yield
            if not found and not moved:
                return self._found()
            pool = Pool(found, self.size)

    def _prepare(self) -> Generator[None, None, None]:
        """The first basis: an artificial column for each terminal, the slack of each node."""
        problem, random, size = self.problem, self.random, self.size
        ends = (*problem.entries, *problem.exits)
        self.largest = max([1.0, *(_largest(end.cost) for end in ends), *map(_largest, problem.arcs)])
        noise = NOISE * self.largest
        self.arcs: list[Numbers] = []
        for arcs in problem.arcs:
            drawn = np.array([random.random() for _ in range(arcs.size)])
            self.arcs.append(arcs + noise * drawn.reshape(arcs.shape))
            yield
        commodities = sorted({end.commodity for end in problem.entries})
        self.commodities = [(_ends(problem.entries, each), _ends(problem.exits, each)) for each in commodities]
        room = [n + SLACK * (1 + random.random()) for layer in problem.capacity for n in layer]
        self.values = np.array([float(end.count) for end in ends] + room)
        self.inverse = np.eye(size)
        self.product = np.empty((size, size))
        self.duals = np.zeros(size + 1)  # and the price of no row
        self.duals[: self.first_node] = 100.0 * self.largest
        self.basis: list[Column | None] = [None] * size  # None: an artificial column, or the slack of a node
        self.artificial = [row < self.first_node for row in range(size)]
        yield

    def _enter(self, pool: Pool, limit: float) -> bool:
        """Bring in what promises most: a column, or the slack of a node whose capacity has a price above 0."""
        prices = self.duals[self.first_node : self.size]
        dearest = int(prices.argmax())
        highest = float(prices[dearest])
        least, number = pool.least(self.duals)
        if min(least, -highest) >= limit:
            return False
        if -highest <= least:
            self._pivot((self.first_node + dearest,), -highest, None)
        else:
            column = pool.take(number)
            self._pivot(column.rows, least, column)
        return True

    def _shortest(self, entries: list[Ends], exits: list[Ends], limit: float) -> list[Column]:
        """For each exit of a commodity the path of least reduced cost to it, if that is below the limit."""
        duals = self.duals
        best: list[Numbers] = []
        origins: list[list[tuple[bool, int]]] = []  # (from an entry, its number or that of the node before)
        for layer, capacity in enumerate(self.problem.capacity):
            nodes = len(capacity)
            values = np.full(nodes, INFINITE)
            origin = np.full(nodes, -1)
            if layer and best[-1].size:
                sums = self.arcs[layer - 1] + best[-1]
                origin = sums.argmin(axis=1)
                values = sums[np.arange(nodes), origin]
            entered = np.isinf(values)
            for ends in entries:
                if ends.layer == layer:
                    sums = ends.costs - duals[ends.numbers][:, np.newaxis]
                    first = sums.argmin(axis=0)
                    least = sums[first, np.arange(nodes)]
                    better = least < values
                    values = np.where(better, least, values)
                    origin = np.where(better, np.array(ends.numbers)[first], origin)
                    entered |= better
            at = self.first_row[layer]
            best.append(values - duals[at : at + nodes])
            origins.append(list(zip(entered.tolist(), origin.tolist(), strict=True)))
        found = []
        for ends in exits:
            sums = ends.costs + best[ends.layer]
            last = sums.argmin(axis=1)
            least = sums[np.arange(len(ends.numbers)), last]
            reduced = least - duals[len(self.problem.entries) + np.array(ends.numbers)]
            for i in np.flatnonzero(reduced < limit).tolist():
                found.append((ends.numbers[i], ends.layer, int(last[i])))
        return [self._column(_trace(number, layer, node, origins)) for number, layer, node in sorted(found)]

    def _column(self, path: Path) -> Column:
        problem, nodes, layer = self.problem, path.nodes, path.layer
        cost = float(problem.entries[path.entry].cost[nodes[0]]) + float(problem.exits[path.exit].cost[nodes[-1]])
        for i in range(len(nodes) - 1):
            cost += float(self.arcs[layer + i][nodes[i + 1], nodes[i]])
        rows = [path.entry, len(problem.entries) + path.exit]
        rows += [self.first_row[layer + i] + node for i, node in enumerate(nodes)]
        return Column(path, cost, tuple(rows))

    def _pivot(self, rows: tuple[int, ...], reduced: float, column: Column | None) -> None:
        """Bring a column in. rows: where it has a 1."""
        self.pivots += 1
        inverse, values = self.inverse, self.values
        direction = inverse[:, rows[0]].copy()
        for row in rows[1:]:
            direction += inverse[:, row]
        ratios = np.full(self.size, INFINITE)
        np.divide(values, direction, out=ratios, where=direction > 1e-9)
        least = float(ratios.min())
        assert least < INFINITE, "no more goes through than enters"
        ties = np.flatnonzero(ratios == least)
        leaving = int(ties[direction[ties].argmax()])
        pivot_row = inverse[leaving] / direction[leaving]
        direction[leaving] = 0.0
        np.multiply(direction[:, np.newaxis], pivot_row, out=self.product)
        inverse -= self.product
        values -= direction * least
        inverse[leaving] = pivot_row
        values[leaving] = least
        self.basis[leaving] = column
        self.artificial[leaving] = False
        self.duals[: self.size] += reduced * pivot_row

    def _found(self) -> list[tuple[Path, float]] | None:
        """Units on paths; None where some find no way."""
        values: list[float] = self.values.tolist()
        if any(artificial and value > WHOLE for artificial, value in zip(self.artificial, values, strict=True)):
            return None
        return [
            (column.path, value)
            for column, value in zip(self.basis, values, strict=True)
            if column is not None and value > 0
        ]


def _largest(costs: Numbers) -> float:
    """Of those that are possible."""
    return float(costs.max(initial=0.0, where=costs < INFINITE))


def _ends(terminals: list[Terminal], commodity: int) -> list[Ends]:
    """Those of a commodity, by layer."""
    by_layer: dict[int, list[int]] = {}
    for number, end in enumerate(terminals):
        if end.commodity == commodity:
            by_layer.setdefault(end.layer, []).append(number)
    return [Ends(at, numbers, np.array([terminals[n].cost for n in numbers])) for at, numbers in by_layer.items()]


def _trace(number: int, layer: int, node: int, origins: list[list[tuple[bool, int]]]) -> Path:
    """The path to an exit, followed back to its entry."""
    nodes = [node]
    starts, origin = origins[layer][node]
    while not starts:
        layer -= 1
        nodes.append(origin)
        starts, origin = origins[layer][origin]
    nodes.reverse()
    return Path(origin, number, layer, tuple(nodes))
