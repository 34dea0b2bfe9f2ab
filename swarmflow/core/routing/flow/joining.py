"""The stage in which a new peer helps most (GWTF, V-B): what its links would save of the time on links, by stage.

The least cost of the flows is found by shortest augmenting paths, as in any textbook on network flows; what a peer
saves at a stage is the sum of the negative cycles through it. All numpy operations are elementwise, without matrix
products, so that results are the same on any machine.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]

NEGLIGIBLE_S = 1e-9  # a smaller difference of two paths is a rounding error
SWEEPS_MAX = 4  # over all layers, for each layer: a path turns back once at a layer, and seldom at several


@dataclass(frozen=True, slots=True)
class StageLinks:
    """The links between the peers of all stages, in seconds of one boundary tensor, and of a new peer to all of them.

    Each has an entry for each stage, with one for each of its peers.
    """

    capacity: Sequence[Sequence[int]]  # microbatches that a peer holds at a time
    links_s: Sequence[Numbers]  # [peers of the stage, peers of the next stage]; one fewer than stages
    own_s: Sequence[Sequence[float]]  # the new peer's links
    own_capacity: int


@dataclass(frozen=True, slots=True)
class LinkSavings:
    """What a new peer saves of the time on links, on the mean of all microbatches that are under way at a time."""

    flows: int  # microbatches under way at a time, without it
    path_s: float  # seconds on links of one of these, one way, without it
    saved_s: tuple[float, ...]  # of path_s, by the stage that it joins


def saved_by_stage(given: StageLinks, wanted: int) -> Generator[None, None, LinkSavings]:
    """Return what a new peer saves at each stage, all flows at their least cost with it and without it.

    It yields after each slice of work, a path.

    wanted: microbatches of a step. As many flows as that are under way, or as the narrowest stage holds. Trainers and
    their links count for nothing, since no boundary tensor crosses them.
    """
    flows = max(1, min(wanted, *(sum(stage) for stage in given.capacity)))
    layers = [[flows], *given.capacity, [flows]]
    ends = [np.zeros((1, len(given.capacity[0]))), np.zeros((len(given.capacity[-1]), 1))]
    swarm = _Flows(
        [np.array(layer, np.int64) for layer in layers], [ends[0], *(links.copy() for links in given.links_s), ends[1]]
    )
    yield from swarm.push(_End(0, 0), _End(len(layers) - 1, 0), flows)
    own = [np.zeros(1), *(np.array(stage, np.float64) for stage in given.own_s), np.zeros(1)]
    saved = []
    for layer in range(1, len(layers) - 1):
        joined, node = swarm.joined(layer, own[layer - 1], own[layer + 1])
        cost_s = yield from joined.push(node, node, given.own_capacity, least=True)
        saved.append(-cost_s / flows)
    return LinkSavings(flows, swarm.cost_s / flows, tuple(saved))


class _End(NamedTuple):
    """A node of the network, at which a path begins or ends."""

    layer: int
    node: int


class _Arc(NamedTuple):
    """A part of a path: a link between two layers, or (to == INSIDE) the capacity of a node.

    back: it takes units off.
    """

    layer: int
    node: int
    to: int
    back: bool


INSIDE = -1  # instead of a node of another layer: the other side of the same node
NOWHERE = -2  # no path has come to this side of a node


class _Flows:
    """Units of flow from layer to layer. Each node has a side into which links lead, and one out of which they do."""

    def __init__(self, capacity: list[Counts], cost: list[Numbers]) -> None:
        self.capacity = capacity  # of the nodes of each layer
        self.cost = cost  # of the links from each layer to the next
        self.units = [np.zeros(links.shape, np.int64) for links in cost]
        self.through = [np.zeros(len(layer), np.int64) for layer in capacity]

    @property
    def cost_s(self) -> float:
        """The cost of all units on their links."""
        return sum(float((cost * units).sum()) for cost, units in zip(self.cost, self.units, strict=True))

    def joined(self, layer: int, before_s: Numbers, after_s: Numbers) -> tuple[_Flows, _End]:
        """Return the same flows with one node more, and that node.

        It has no capacity: flows through it are cycles that begin and end there. before_s, after_s: the costs of its
        links from the layer before and to the next one.
        """
        found = _Flows([*self.capacity], [*self.cost])
        found.units, found.through = [units.copy() for units in self.units], [each.copy() for each in self.through]
        found.capacity[layer] = np.append(self.capacity[layer], 0)
        found.through[layer] = np.append(found.through[layer], 0)
        found.cost[layer - 1] = np.hstack((self.cost[layer - 1], before_s[:, None]))
        found.cost[layer] = np.vstack((self.cost[layer], after_s[None, :]))
        found.units[layer - 1] = np.hstack((found.units[layer - 1], np.zeros((len(before_s), 1), np.int64)))
        found.units[layer] = np.vstack((found.units[layer], np.zeros((1, len(after_s)), np.int64)))
        return found, _End(layer, len(found.capacity[layer]) - 1)

    def push(self, start: _End, end: _End, most: int, least: bool = False) -> Generator[None, None, float]:
        """Send up to so many units from a node to another one, each time by the cheapest path; return their cost.

        It yields after each path. least: only units that lower the cost.
        """
        cost_s = 0.0
        while most > 0 and (found := self._cheapest(start, end)) is not None:
            path, path_s = found
            if least and path_s >= -NEGLIGIBLE_S:
                break
            units = min(most, *(self._room(arc) for arc in path))
            for arc in path:
                self._send(arc, units)
            cost_s, most = cost_s + units * path_s, most - units
            yield
        return cost_s

    def _cheapest(self, start: _End, end: _End) -> tuple[list[_Arc], float] | None:
        """Return the cheapest path that has room, and the cost of a unit on it; None: there is none.

        By sweeps over all layers, on and back (Bellman and Ford): no cycle lowers the cost.
        """
        layers = range(len(self.capacity))
        into = [np.full(len(layer), np.inf) for layer in self.capacity]  # least cost to where links lead
        out = [np.full(len(layer), np.inf) for layer in self.capacity]  # and to where they leave
        from_into = [np.full(len(layer), NOWHERE) for layer in self.capacity]  # the node before on the path
        from_out = [np.full(len(layer), NOWHERE) for layer in self.capacity]
        full = [np.where(self.through[at] < self.capacity[at], 0.0, np.inf) for at in layers]
        unused = [np.where(self.through[at] > 0, 0.0, np.inf) for at in layers]
        back = [np.where(units > 0, -cost, np.inf).T for units, cost in zip(self.units, self.cost, strict=True)]
        out[start.layer][start.node] = 0.0
        fresh_into, fresh_out = [False for _ in layers], [at == start.layer for at in layers]  # not looked at yet
        for _ in range(SWEEPS_MAX * len(layers)):
            for at in layers:
                if at > 0 and fresh_out[at - 1]:
                    fresh_into[at] |= _improve(into[at], from_into[at], out[at - 1][:, None] + self.cost[at - 1])
                if fresh_into[at]:
                    fresh_out[at] |= _pass(out[at], from_out[at], into[at] + full[at])
            fresh_out = [False for _ in layers]
            for at in reversed(layers):
                if at + 1 < len(layers) and fresh_into[at + 1]:
                    costs = into[at + 1][:, None] + back[at]
                    if at == start.layer:
                        costs[:, start.node] = np.inf
                    fresh_out[at] |= _improve(out[at], from_out[at], costs)
                if fresh_out[at]:
                    fresh_into[at] |= _pass(into[at], from_into[at], out[at] + unused[at])
            if not any(fresh_out):
                break
            fresh_into = [False for _ in layers]
        path = self._traced(start, end, from_into, from_out)
        return None if path is None else (path, float(into[end.layer][end.node]))

    def _traced(
        self, start: _End, end: _End, from_into: list[NDArray[np.intp]], from_out: list[NDArray[np.intp]]
    ) -> list[_Arc] | None:
        """Return the arcs of the path, last one first."""
        path: list[_Arc] = []
        (layer, node), leaves = end, False
        for _ in range(4 * sum(map(len, self.capacity))):
            if leaves and (layer, node) == start:
                return path
            before = int((from_out if leaves else from_into)[layer][node])
            if before == NOWHERE:
                return None
            if before == INSIDE:
                path.append(_Arc(layer, node, INSIDE, back=not leaves))
                leaves = not leaves
            elif leaves:  # a unit is taken off a link to the next layer
                path.append(_Arc(layer, node, before, back=True))
                layer, node, leaves = layer + 1, before, False
            else:
                path.append(_Arc(layer - 1, before, node, back=False))
                layer, node, leaves = layer - 1, before, True
        return None

    def _room(self, arc: _Arc) -> int:
        if arc.to == INSIDE:
            through = self.through[arc.layer][arc.node]
            return int(through if arc.back else self.capacity[arc.layer][arc.node] - through)
        return int(self.units[arc.layer][arc.node, arc.to]) if arc.back else int(np.iinfo(np.int64).max)

    def _send(self, arc: _Arc, units: int) -> None:
        units = -units if arc.back else units
        if arc.to == INSIDE:
            self.through[arc.layer][arc.node] += units
        else:
            self.units[arc.layer][arc.node, arc.to] += units


def _improve(costs: Numbers, origin: NDArray[np.intp], offered: Numbers) -> bool:
    """Take the least cost that is offered to each node, by row, where it is less; return whether any is."""
    better = offered.min(0) < costs - NEGLIGIBLE_S
    if not better.any():
        return False
    which = offered.argmin(0)[better]
    costs[better], origin[better] = offered[which, better.nonzero()[0]], which
    return True


def _pass(costs: Numbers, origin: NDArray[np.intp], offered: Numbers) -> bool:
    """Take the cost of the other side of each node where it is less; return whether any is."""
    better = offered < costs - NEGLIGIBLE_S
    costs[better], origin[better] = offered[better], INSIDE
    return bool(better.any())
