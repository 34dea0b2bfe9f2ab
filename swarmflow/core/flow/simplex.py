"""The cheapest paths through a window for all data nodes at once: a linear program over paths.

The program has a row for each terminal and each node, and a column for each path. Columns are not listed but found: the
path of least reduced cost is a shortest path (column generation). The relaxation is nearly always whole-numbered;
`whole.py` rounds what is not.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random

INFINITE = float("inf")
EPSILON = 1e-7  # of a reduced cost, relative to the largest cost
NOISE = 1e-6  # on costs, relative to the largest, so that one optimum alone remains
SLACK = 1e-5  # on capacities, against cycling
WHOLE = 0.01  # how far from a whole number a flow may be
PIVOTS_A_ROW = 40  # more are not tried
SLICE = 10_000  # numbers that are worked on before others have their turn: about a millisecond


@dataclass(slots=True)
class Terminal:
    """Where units of one commodity come into the window, or leave it: so many, at one layer, at that cost per node."""

    commodity: int
    layer: int
    count: int
    cost: list[float]


@dataclass(frozen=True, slots=True)
class Path:
    """From an entry through `nodes`, one a layer from `layer` on, to an exit."""

    entry: int
    exit: int
    layer: int
    nodes: tuple[int, ...]


@dataclass(slots=True)
class Problem:
    """capacity[layer][node]; arcs[layer][to][from]: the cost from a node of this layer to one of the next.

    known: paths that are good to begin with.
    """

    capacity: list[list[int]]
    arcs: list[list[list[float]]]
    entries: list[Terminal]
    exits: list[Terminal]
    known: list[Path] = field(default_factory=list)


@dataclass(slots=True)
class Column:
    """rows: where it has a 1. cost: with the noise."""

    path: Path
    cost: float
    rows: tuple[int, ...]


class Simplex:
    """Revised simplex with the inverse of the basis kept; iterate `solve` to its end, a slice of work at a time."""

    def __init__(self, problem: Problem, random: Random) -> None:
        self.problem = problem
        self.random = random
        self.first_node = len(problem.entries) + len(problem.exits)
        self.node_row: list[list[int]] = []
        at = self.first_node
        for layer in problem.capacity:
            self.node_row.append(list(range(at, at + len(layer))))
            at += len(layer)
        self.size = at
        self.pivots = 0
        commodities = sorted({end.commodity for end in problem.entries})
        self.commodities = [
            (
                [i for i, end in enumerate(problem.entries) if end.commodity == commodity],
                [i for i, end in enumerate(problem.exits) if end.commodity == commodity],
            )
            for commodity in commodities
        ]

    def solve(self) -> Generator[None, None, list[tuple[Path, float]] | None]:
        """Yields after each slice; returns the cheapest flows, as units on paths, or None."""
        yield from self._prepare()
        limit = -EPSILON * self.largest
        pool = [self._column(path) for path in self.problem.known]
        while True:
            moved = False
            while (yield from self._enter(pool, limit)):
                moved = True
                yield
                if self.pivots > PIVOTS_A_ROW * self.size:
                    return None
            pool = []
            for entries, exits in self.commodities:
                pool += yield from self._shortest(entries, exits, limit)
                yield
            if not pool and not moved:
                return self._found()

    def _prepare(self) -> Generator[None, None, None]:
        """The first basis: an artificial column for each terminal, the slack of each node."""
        problem, random, size = self.problem, self.random, self.size
        ends = (*problem.entries, *problem.exits)
        costs = [max((c for c in end.cost if c < INFINITE), default=0.0) for end in ends]
        costs += [max((c for c in row if c < INFINITE), default=0.0) for layer in problem.arcs for row in layer]
        self.largest = max(1.0, *costs)
        yield
        noise = NOISE * self.largest
        self.arcs: list[list[list[float]]] = []
        for layer in problem.arcs:
            self.arcs.append([[c + noise * random.random() for c in row] for row in layer])
            yield
        self.values = [float(end.count) for end in ends]
        self.values += [n + SLACK * (1 + random.random()) for layer in problem.capacity for n in layer]
        self.inverse = [[0.0] * size for _ in range(size)]
        for i in range(size):
            self.inverse[i][i] = 1.0
        penalty = 100.0 * self.largest
        self.duals = [penalty if row < self.first_node else 0.0 for row in range(size)]
        self.basis: list[Column | None] = [None] * size  # None: an artificial column, or the slack of a node
        self.artificial = [row < self.first_node for row in range(size)]

    def _enter(self, pool: list[Column], limit: float) -> Generator[None, None, bool]:
        """Bring in what promises most: a column, or the slack of a node whose capacity has a price above 0."""
        duals = self.duals
        prices = duals[self.first_node :]
        highest = max(prices, default=0.0)
        costs = [column.cost - sum(map(duals.__getitem__, column.rows)) for column in pool]
        least = min(costs, default=0.0)
        if min(least, -highest) >= limit:
            return False
        if -highest <= least:
            yield from self._pivot((self.first_node + prices.index(highest),), -highest, None)
        else:
            column = pool.pop(costs.index(least))
            yield from self._pivot(column.rows, least, column)
        return True

    def _shortest(
        self, entries: list[int], exits: list[int], limit: float
    ) -> Generator[None, None, list[Column]]:
        """For each exit of a commodity the path of least reduced cost to it, if that is below the limit."""
        problem, duals, work = self.problem, self.duals, 0
        best: list[list[float]] = []
        came: list[list[tuple[bool, int]]] = []  # (from an entry, its number or that of the node before)
        for layer, rows in enumerate(self.node_row):
            values = [INFINITE] * len(rows)
            origin = [(True, -1)] * len(rows)
            if layer and min(best[-1], default=INFINITE) < INFINITE:
                before = best[-1]
                for node, row in enumerate(self.arcs[layer - 1]):
                    if (work := work + len(row)) > SLICE:
                        work = 0
                        yield
                    sums = [a + b for a, b in zip(before, row, strict=True)]
                    values[node] = least = min(sums)
                    origin[node] = (False, sums.index(least))
            for entry in entries:
                end = problem.entries[entry]
                if end.layer == layer:
                    if (work := work + 2 * len(end.cost)) > SLICE:
                        work = 0
                        yield
                    price = duals[entry]
                    for node, cost in enumerate(end.cost):
                        if cost - price < values[node]:
                            values[node], origin[node] = cost - price, (True, entry)
            best.append([value - duals[row] for value, row in zip(values, rows, strict=True)])
            came.append(origin)
        found = []
        for number in exits:
            end = problem.exits[number]
            if (work := work + len(end.cost)) > SLICE:
                work = 0
                yield
            sums = [a + b for a, b in zip(best[end.layer], end.cost, strict=True)]
            least = min(sums, default=INFINITE)
            if least - duals[len(problem.entries) + number] < limit:
                found.append(self._column(_trace(number, end.layer, sums.index(least), came)))
        return found

    def _column(self, path: Path) -> Column:
        problem, nodes, layer = self.problem, path.nodes, path.layer
        cost = problem.entries[path.entry].cost[nodes[0]] + problem.exits[path.exit].cost[nodes[-1]]
        for i in range(len(nodes) - 1):
            cost += self.arcs[layer + i][nodes[i + 1]][nodes[i]]
        rows = [path.entry, len(problem.entries) + path.exit]
        rows += [self.node_row[layer + i][node] for i, node in enumerate(nodes)]
        return Column(path, cost, tuple(rows))

    def _pivot(
        self, rows: tuple[int, ...], reduced: float, column: Column | None
    ) -> Generator[None, None, None]:
        """Bring a column in. rows: where it has a 1."""
        self.pivots += 1
        inverse, values = self.inverse, self.values
        if len(rows) == 1:
            (only,) = rows
            direction = [row[only] for row in inverse]
        else:
            direction = [sum([row[r] for r in rows]) for row in inverse]
        ratios = [
            (value / step, -step, i)
            for i, (value, step) in enumerate(zip(values, direction, strict=True)) if step > 1e-9
        ]  # fmt: skip
        least, _, leaving = min(ratios)
        step = direction[leaving]
        pivot_row = [v / step for v in inverse[leaving]]
        filled = [(j, v) for j, v in enumerate(pivot_row) if v]
        work = 0
        for i, factor in enumerate(direction):
            if factor and i != leaving:
                if (work := work + len(filled)) > SLICE:
                    work = 0
                    yield
                row = inverse[i]
                for j, v in filled:
                    row[j] -= factor * v
                values[i] -= factor * least
        inverse[leaving] = pivot_row
        values[leaving] = least
        self.basis[leaving] = column
        self.artificial[leaving] = False
        for j, v in filled:
            self.duals[j] += reduced * v

    def _found(self) -> list[tuple[Path, float]] | None:
        """Units on paths; None where some find no way."""
        if any(artificial and value > WHOLE for artificial, value in zip(self.artificial, self.values, strict=True)):
            return None
        return [
            (column.path, value)
            for column, value in zip(self.basis, self.values, strict=True)
            if column is not None and value > 0
        ]


def _trace(number: int, layer: int, node: int, came: list[list[tuple[bool, int]]]) -> Path:
    """The path to an exit, followed back to its entry."""
    nodes = [node]
    starts, origin = came[layer][node]
    while not starts:
        layer -= 1
        nodes.append(origin)
        starts, origin = came[layer][origin]
    nodes.reverse()
    return Path(origin, number, layer, tuple(nodes))
