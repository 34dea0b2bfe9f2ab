"""The cheapest paths through a window for all data nodes at once: a small linear program over paths.

Few stages, few nodes: the program has a row for each terminal and each node, and a column for each path. Columns are
not listed but found: the path of least reduced cost is a shortest path (column generation). The relaxation is nearly
always whole-numbered; where it is not, nothing is found, and the window stays as it is.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import pairwise
from random import Random

INFINITE = float("inf")
EPSILON = 1e-7  # of a reduced cost, relative to the largest cost
NOISE = 1e-6  # on costs, relative to the largest, so that one optimum alone remains
SLACK = 1e-5  # on capacities, against cycling
WHOLE = 0.01  # how far from a whole number a flow may be
PIVOTS_MAX = 600


@dataclass(slots=True)
class Terminal:
    """Where units of one commodity come into the window, or leave it: so many, at one layer, at that cost per node."""

    commodity: int
    layer: int
    count: int
    cost: list[float]


@dataclass(slots=True)
class Problem:
    """capacity[layer][node]; arcs[layer][to][from]: the cost from a node of this layer to one of the next."""

    capacity: list[list[int]]
    arcs: list[list[list[float]]]
    entries: list[Terminal]
    exits: list[Terminal]


@dataclass(slots=True)
class Path:
    """A column: from an entry through `nodes`, one a layer from `layer` on, to an exit."""

    entry: int
    exit: int
    layer: int
    nodes: tuple[int, ...]
    cost: float
    rows: tuple[int, ...]


ENTERS, LEAVES = -1, -2
Flows = dict[tuple[int, int, int, int], int]
"""(layer, from, to, commodity) to units. ENTERS: from an entry to a node; LEAVES: from a node to an exit."""


class Simplex:
    """Revised simplex with the inverse of the basis kept; iterate `solve` to its end, a pivot at a time."""

    def __init__(self, problem: Problem, random: Random) -> None:
        self.problem = problem
        self.largest = 1.0 + max(
            (c for layer in problem.arcs for row in layer for c in row if c < INFINITE), default=0.0
        )  # fmt: skip
        for end in (*problem.entries, *problem.exits):
            self.largest = max(self.largest, *(c for c in end.cost if c < INFINITE), 1.0)
        entries, exits = len(problem.entries), len(problem.exits)
        self.first_node = entries + exits
        self.node_row: list[list[int]] = []
        right = [float(end.count) for end in (*problem.entries, *problem.exits)]
        for layer in problem.capacity:
            self.node_row.append(list(range(len(right), len(right) + len(layer))))
            right += [capacity + SLACK * (1 + random.random()) for capacity in layer]
        size = len(right)
        self.values = right
        self.inverse = [[float(i == j) for j in range(size)] for i in range(size)]
        penalty = 100.0 * self.largest
        self.duals = [penalty if row < self.first_node else 0.0 for row in range(size)]
        self.basis: list[Path | None] = [None] * size  # None: an artificial column, or the slack of a node
        self.artificial = [row < self.first_node for row in range(size)]
        noise = NOISE * self.largest
        self.arcs = [[[c + noise * random.random() for c in row] for row in layer] for layer in problem.arcs]
        self.commodities = sorted({end.commodity for end in problem.entries})
        self._by_commodity = {
            commodity: (
                [i for i, end in enumerate(problem.entries) if end.commodity == commodity],
                [i for i, end in enumerate(problem.exits) if end.commodity == commodity],
            )
            for commodity in self.commodities
        }
        self.pivots = 0

    def solve(self) -> Generator[None, None, Flows | None]:
        """Yields after each pivot; returns the cheapest whole-numbered flows, or None."""
        limit = -EPSILON * self.largest
        while self.pivots < PIVOTS_MAX:
            pool = [path for commodity in self.commodities for path in self._shortest(commodity, limit)]
            moved = False
            while self.pivots < PIVOTS_MAX:
                row = self._slack(-limit)
                if row is not None:
                    self._pivot((row,), -self.duals[row], None)
                else:
                    costs = [path.cost - sum(map(self.duals.__getitem__, path.rows)) for path in pool]
                    least = min(costs, default=0.0)
                    if least >= limit:
                        break
                    path = pool.pop(costs.index(least))
                    self._pivot(path.rows, least, path)
                moved = True
                yield
            if not moved:
                return self._whole()
            yield
        return None

    def _slack(self, limit: float) -> int | None:
        """A node whose capacity has a price above 0, which its slack would push down."""
        prices = self.duals[self.first_node :]
        highest = max(prices, default=0.0)
        return self.first_node + prices.index(highest) if highest > limit else None

    def _shortest(self, commodity: int, limit: float) -> list[Path]:
        """For each exit of the commodity the path of least reduced cost to it, if that is below the limit."""
        problem, duals = self.problem, self.duals
        entries, exits = self._by_commodity[commodity]
        best: list[list[float]] = []
        came: list[list[tuple[bool, int]]] = []  # (from an entry, its number or that of the node before)
        for layer, rows in enumerate(self.node_row):
            values = [INFINITE] * len(rows)
            origin = [(True, -1)] * len(rows)
            if layer and min(best[-1], default=INFINITE) < INFINITE:
                before = best[-1]
                for node, row in enumerate(self.arcs[layer - 1]):
                    sums = [a + b for a, b in zip(before, row, strict=True)]
                    values[node] = least = min(sums)
                    origin[node] = (False, sums.index(least))
            for entry in entries:
                end = problem.entries[entry]
                if end.layer == layer:
                    price = duals[entry]
                    for node, cost in enumerate(end.cost):
                        if cost - price < values[node]:
                            values[node], origin[node] = cost - price, (True, entry)
            best.append([value - duals[row] for value, row in zip(values, rows, strict=True)])
            came.append(origin)
        found = []
        for number in exits:
            end = problem.exits[number]
            sums = [a + b for a, b in zip(best[end.layer], end.cost, strict=True)]
            least = min(sums)
            if least - duals[len(problem.entries) + number] < limit:
                found.append(self._path(number, end.layer, sums.index(least), came))
        return found

    def _path(self, number: int, layer: int, node: int, came: list[list[tuple[bool, int]]]) -> Path:
        problem = self.problem
        cost = problem.exits[number].cost[node]
        nodes = [node]
        starts, origin = came[layer][node]
        while not starts:
            layer -= 1
            cost += self.arcs[layer][nodes[-1]][origin]
            nodes.append(origin)
            starts, origin = came[layer][origin]
        nodes.reverse()
        cost += problem.entries[origin].cost[nodes[0]]
        rows = [origin, len(problem.entries) + number]
        rows += [self.node_row[layer + i][node] for i, node in enumerate(nodes)]
        return Path(origin, number, layer, tuple(nodes), cost, tuple(rows))

    def _pivot(self, rows: tuple[int, ...], reduced: float, path: Path | None) -> None:
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
        for i, factor in enumerate(direction):
            if factor and i != leaving:
                inverse[i] = [v - factor * p for v, p in zip(inverse[i], pivot_row, strict=True)]
                values[i] -= factor * least
        inverse[leaving] = pivot_row
        values[leaving] = least
        self.basis[leaving] = path
        self.artificial[leaving] = False
        self.duals = [dual + reduced * p for dual, p in zip(self.duals, pivot_row, strict=True)]

    def _whole(self) -> Flows | None:
        """The flow on each link, which must be whole, even where single paths are not."""
        flows: dict[tuple[int, int, int, int], float] = {}
        for path, value, artificial in zip(self.basis, self.values, self.artificial, strict=True):
            if artificial and value > WHOLE:
                return None
            if path is None or value <= 0:
                continue
            commodity = self.problem.entries[path.entry].commodity
            hops = [(ENTERS, path.entry, path.nodes[0])]
            hops += [(path.layer + i, a, b) for i, (a, b) in enumerate(pairwise(path.nodes))]
            hops.append((LEAVES, path.nodes[-1], path.exit))
            for layer, a, b in hops:
                flows[layer, a, b, commodity] = flows.get((layer, a, b, commodity), 0.0) + value
        whole = {key: round(value) for key, value in flows.items()}
        if any(abs(value - whole[key]) > WHOLE for key, value in flows.items()):
            return None
        return {key: units for key, units in whole.items() if units}
