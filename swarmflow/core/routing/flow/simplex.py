"""The cheapest paths through a window for all data nodes at once: a linear program over paths.

The program has a row for each terminal and each node, and a column for each path. Columns are generated: the column of
least reduced cost is a shortest path. The optimum is nearly always integral; `whole.py` handles the other cases.

All numpy operations are elementwise, without matrix products, so that results are the same on any machine. With lists
instead of arrays, a window of 300 nodes took 30 times as long.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

INFINITE = float("inf")
EPSILON = 1e-7  # tolerance of a reduced cost, relative to the largest cost
NOISE = 1e-6  # random addition to costs, relative to the largest one, so that the optimum is unique
SLACK = 1e-5  # random addition to capacities, in units, against cycling
WHOLE = 0.01  # tolerance of an integral flow, in units
PIVOTS_PER_ROW = 40  # limit of pivots, as a multiple of the rows

Numbers = NDArray[np.float64]


@dataclass(slots=True)
class Terminal:
    """Where units of one commodity enter the window, or leave it."""

    commodity: int  # number of the data node
    layer: int
    count: int  # units
    cost: Numbers  # [node of the layer]: of entering or leaving there; infinite: impossible


@dataclass(frozen=True, slots=True)
class NodePath:
    """A path from an entry through one node of each layer to an exit."""

    entry: int  # index of its entry
    exit: int  # index of its exit
    layer: int  # of the first node
    nodes: tuple[int, ...]  # index of the node in each layer


@dataclass(slots=True)
class PathProgram:
    """The cheapest paths for all terminals, within the capacities of the nodes."""

    capacity: list[list[int]]  # [layer][node]
    arcs: list[Numbers]  # [layer][to, from]: the cost from a node of this layer to one of the next
    entries: list[Terminal]
    exits: list[Terminal]
    known: list[NodePath] = field(default_factory=list)  # good paths: the first columns


@dataclass(slots=True)
class Column:
    """A column of the program: the flow on one path."""

    path: NodePath
    cost: float  # noise included
    rows: tuple[int, ...]  # rows in which it has a 1; all others are 0


class Pool:
    """Columns that may enter the basis, each once. size: number of rows of the program."""

    def __init__(self, columns: Sequence[Column], size: int) -> None:
        self.columns = columns
        self.costs = np.array([column.cost for column in columns])
        width = max((len(column.rows) for column in columns), default=0)
        # [position, column]. Shorter columns are padded with the row beyond the last, whose price is 0.
        padded = [column.rows + (size,) * (width - len(column.rows)) for column in columns]
        self.rows = np.array(padded, dtype=np.intp).reshape(len(columns), width).T

    def least(self, duals: Numbers) -> tuple[float, int]:
        """Return the least reduced cost of the pool and the index of its column; (0.0, -1): it has none.

        duals: the price of each row, and 0 for the row beyond the last.
        """
        if not self.columns:
            return 0.0, -1
        prices = np.zeros(len(self.columns))
        for row in self.rows:
            prices += duals[row]
        reduced = self.costs - prices
        number = int(reduced.argmin())
        return float(reduced[number]), number

    def take(self, number: int) -> Column:
        """Remove a column and return it."""
        self.costs[number] = INFINITE
        return self.columns[number]


@dataclass(slots=True)
class Ends:
    """The terminals of one commodity at one layer."""

    layer: int
    numbers: list[int]  # indices of the terminals
    costs: Numbers  # [terminal, node of the layer]


class Simplex:
    """The revised simplex method with an explicit inverse of the basis; `solve` is iterated to its end.

    A slice of work is a pivot, or a search for columns: a fraction of a millisecond in a window of 300 nodes.
    """

    def __init__(self, problem: PathProgram, random: Random) -> None:
        self.problem = problem
        self.random = random
        self.first_node = len(problem.entries) + len(problem.exits)  # row of the first node
        self.first_row: list[int] = []  # of the nodes of each layer
        row = self.first_node
        for layer in problem.capacity:
            self.first_row.append(row)
            row += len(layer)
        self.size = row  # number of rows
        self.pivots = 0

    def solve(self) -> Generator[None, None, list[tuple[NodePath, float]] | None]:
        """Yield after each slice of work; return the cheapest flows as units on paths; None: none were found."""
        yield from self._prepare()
        limit = -EPSILON * self.largest
        pool = Pool([self._column(path) for path in self.problem.known], self.size)
        while True:
            pivoted = False
            while self._enter(pool, limit):
                pivoted = True
                yield
                if self.pivots > PIVOTS_PER_ROW * self.size:
                    return None
            found: list[Column] = []
            for entries, exits in self.commodities:
                found += self._shortest(entries, exits, limit)
                yield
            if not found and not pivoted:
                return self._solution()
            pool = Pool(found, self.size)

    def _prepare(self) -> Generator[None, None, None]:
        """Make the first basis: an artificial column of high cost for each terminal, and the slack of each node."""
        problem, random, size = self.problem, self.random, self.size
        ends = (*problem.entries, *problem.exits)
        self.largest = max([1.0, *(_largest(end.cost) for end in ends), *map(_largest, problem.arcs)])
        noise = NOISE * self.largest
        self.arcs: list[Numbers] = []  # as in the program, with noise
        for arcs in problem.arcs:
            uniform = np.array([random.random() for _ in range(arcs.size)])
            self.arcs.append(arcs + noise * uniform.reshape(arcs.shape))
            yield
        commodities = sorted({end.commodity for end in problem.entries})
        self.commodities = [(_ends(problem.entries, each), _ends(problem.exits, each)) for each in commodities]
        room = [n + SLACK * (1 + random.random()) for layer in problem.capacity for n in layer]
        self.values = np.array([float(end.count) for end in ends] + room)  # of the basic variables
        self.inverse = np.eye(size)  # of the basis
        self.product = np.empty((size, size))  # a buffer
        self.duals = np.zeros(size + 1)  # price of each row; the last one is that of the row beyond the last
        self.duals[: self.first_node] = 100.0 * self.largest
        self.basis: list[Column | None] = [None] * size  # None: an artificial column, or the slack of a node
        self.artificial = [row < self.first_node for row in range(size)]
        yield

    def _enter(self, pool: Pool, limit: float) -> bool:
        """Let the column or slack of least reduced cost enter the basis. False: none is below the limit."""
        prices = self.duals[self.first_node : self.size]
        node = int(prices.argmax())
        price = float(prices[node])  # the reduced cost of this node's slack is -price
        least, number = pool.least(self.duals)
        if min(least, -price) >= limit:
            return False
        if -price <= least:
            self._pivot((self.first_node + node,), -price, None)
        else:
            column = pool.take(number)
            self._pivot(column.rows, least, column)
        return True

    def _shortest(self, entries: list[Ends], exits: list[Ends], limit: float) -> list[Column]:
        """Return the path of least reduced cost to each exit of a commodity, where that cost is below the limit."""
        duals = self.duals
        best: list[Numbers] = []  # [layer][node]: least reduced cost of a path to the node, the node included
        # [layer][node]: (whether that path begins here, the index of its entry or else of the node before)
        origins: list[list[tuple[bool, int]]] = []
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

    def _column(self, path: NodePath) -> Column:
        """Return the column of a path."""
        problem, nodes, layer = self.problem, path.nodes, path.layer
        cost = float(problem.entries[path.entry].cost[nodes[0]]) + float(problem.exits[path.exit].cost[nodes[-1]])
        for i in range(len(nodes) - 1):
            cost += float(self.arcs[layer + i][nodes[i + 1], nodes[i]])
        rows = [path.entry, len(problem.entries) + path.exit]
        rows += [self.first_row[layer + i] + node for i, node in enumerate(nodes)]
        return Column(path, cost, tuple(rows))

    def _pivot(self, rows: tuple[int, ...], reduced: float, column: Column | None) -> None:
        """Let a column enter the basis; None: a slack. rows: in which it has a 1; reduced: its reduced cost."""
        self.pivots += 1
        inverse, values = self.inverse, self.values
        direction = inverse[:, rows[0]].copy()
        for row in rows[1:]:
            direction += inverse[:, row]
        ratios = np.full(self.size, INFINITE)
        np.divide(values, direction, out=ratios, where=direction > 1e-9)
        step = float(ratios.min())
        assert step < INFINITE, "no more goes through than enters"
        ties = np.flatnonzero(ratios == step)
        leaving = int(ties[direction[ties].argmax()])
        pivot_row = inverse[leaving] / direction[leaving]
        direction[leaving] = 0.0
        np.multiply(direction[:, np.newaxis], pivot_row, out=self.product)
        inverse -= self.product
        values -= direction * step
        inverse[leaving] = pivot_row
        values[leaving] = step
        self.basis[leaving] = column
        self.artificial[leaving] = False
        self.duals[: self.size] += reduced * pivot_row

    def _solution(self) -> list[tuple[NodePath, float]] | None:
        """Return the units on paths; None: some units have no path."""
        values: list[float] = self.values.tolist()
        if any(artificial and value > WHOLE for artificial, value in zip(self.artificial, values, strict=True)):
            return None
        return [
            (column.path, value)
            for column, value in zip(self.basis, values, strict=True)
            if column is not None and value > 0
        ]


def _largest(costs: Numbers) -> float:
    """Return the largest finite cost, at least 0."""
    return float(costs.max(initial=0.0, where=costs < INFINITE))


def _ends(terminals: list[Terminal], commodity: int) -> list[Ends]:
    """Return the terminals of a commodity, by layer."""
    by_layer: dict[int, list[int]] = {}
    for number, end in enumerate(terminals):
        if end.commodity == commodity:
            by_layer.setdefault(end.layer, []).append(number)
    return [Ends(at, numbers, np.array([terminals[n].cost for n in numbers])) for at, numbers in by_layer.items()]


def _trace(number: int, layer: int, node: int, origins: list[list[tuple[bool, int]]]) -> NodePath:
    """Return the path to exit `number` from its last node, followed back to its entry."""
    nodes = [node]
    entered, origin = origins[layer][node]
    while not entered:
        layer -= 1
        nodes.append(origin)
        entered, origin = origins[layer][origin]
    nodes.reverse()
    return NodePath(origin, number, layer, tuple(nodes))
