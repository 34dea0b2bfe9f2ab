"""A window of neighbouring stages as one optimisation problem: from the links of its members to their changes."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import numpy as np

from swarmflow.core.protocol.messages.negotiation import Locked
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import Link
from swarmflow.core.routing.flow.simplex import INFINITE, Numbers, PathProgram, Terminal
from swarmflow.core.routing.flow.whole import ENTERS, LEAVES, Flows, solve
from swarmflow.core.routing.flow.window_paths import Links, WindowEnd, WindowPaths

Sides = Mapping[ProcessId, Mapping[Link, int]]  # node -> the units by link, of one of its sides

NEGLIGIBLE = 1e-9  # a smaller change of a cost, relative to it, is a rounding error
MEMBERS_PER_SLICE = 32  # members that are read in one slice of work, in about a millisecond
ROWS_MAX = 500  # of the linear program; in a window with more, the flows of some data nodes are left as they are


@dataclass(slots=True)
class LinkChange:
    """The changes of one participant: units added, by (other end, data node); below 0: removed."""

    inflow: dict[tuple[ProcessId, ProcessId], int] = field(default_factory=dict)
    outflow: dict[tuple[ProcessId, ProcessId], int] = field(default_factory=dict)


class Window:
    """The links of the members, locked nodes of up to three neighbouring stages, and of locked neighbours outside.

    The path of a unit through the window begins and ends at a terminal. If the neighbour outside is locked, it is the
    terminal, and the unit may enter at (or leave from) another member of that layer. If it is not, or if the unit is
    loose or an orphan, the member is the terminal, and the unit keeps it. Units that only one end of a link has in its
    books are left as they are; an audit settles them.
    """

    def __init__(self, offers: list[dict[ProcessId, Locked]], before: Sides, after: Sides) -> None:
        self.offers = offers  # `offers[layer][member]`: the links that it reports
        self.nodes = [sorted(layer) for layer in offers]  # the members of each layer
        self.costs: dict[ProcessId, dict[ProcessId, float]] = {}  # of links, by member and other end
        self.inflow: dict[ProcessId, dict[Link, int]] = {}  # of each member
        self.outflow: dict[ProcessId, dict[Link, int]] = {}  # of each member
        self.before, self.after = before, after  # locked neighbours: the links of their side towards the window
        self.saved = 0.0  # cost that the solution saves
        self.former_cost = 0.0  # of the links that may change, before the solution
        self.links: Links = {}  # the units on which both ends agree
        self.entries: dict[WindowEnd, int] = {}  # units that enter the window
        self.exits: dict[WindowEnd, int] = {}  # units that leave the window

    def _read_offers(self) -> Generator[None, None, None]:
        """Read the links of the members."""
        for layer in self.offers:
            for number, (name, offer) in enumerate(layer.items()):
                self.costs[name] = dict(offer.costs)
                self.inflow[name] = {(b, s): n for b, s, n in offer.inflow}
                self.outflow[name] = {(a, s): n for a, s, n in offer.outflow}
                if number % MEMBERS_PER_SLICE == 0:
                    yield
        for at, members in enumerate(self.nodes):
            for name in members:
                self._sort_units(at, name)
            yield

    def _sort_units(self, layer: int, name: ProcessId) -> None:
        """Sort one member's units into links of the window and terminals."""
        into: dict[ProcessId, int] = {}
        out: dict[ProcessId, int] = {}
        for sums, outward, table, ends in (
            (into, False, self.inflow[name], self.entries),
            (out, True, self.outflow[name], self.exits),
        ):
            for (node, source), count in table.items():
                sums[source] = sums.get(source, 0) + count
                far_links, outside = self._far_end(layer, node, outward)
                agreed = min(count, far_links.get((name, source), 0))
                if agreed:
                    self.links[(name, node, source) if outward else (node, name, source)] = agreed
                if outside:
                    self._add_to_terminal(ends, WindowEnd(layer, source, node, True), agreed)
                self._add_to_terminal(ends, WindowEnd(layer, source, name, False), count - agreed)
        for source in {**into, **out}:
            loose = into.get(source, 0) - out.get(source, 0)
            self._add_to_terminal(self.exits, WindowEnd(layer, source, name, False), loose)
            self._add_to_terminal(self.entries, WindowEnd(layer, source, name, False), -loose)

    def _far_end(self, layer: int, node: ProcessId, outward: bool) -> tuple[Mapping[Link, int], bool]:
        """Return the links of the other end of a link, none if it takes no part, and whether it is outside."""
        at = layer + (1 if outward else -1)
        if 0 <= at < len(self.offers):
            return (self.inflow if outward else self.outflow)[node] if node in self.offers[at] else {}, False
        return (self.after if outward else self.before).get(node, {}), True

    @staticmethod
    def _add_to_terminal(table: dict[WindowEnd, int], key: WindowEnd, count: int) -> None:
        """Add units to a terminal, if there are any."""
        if count > 0:
            table[key] = table.get(key, 0) + count

    def cost(self, links: Mapping[tuple[ProcessId, ProcessId, ProcessId], int]) -> float:
        """Return the total cost of these units, by link."""
        total = 0.0
        for (sender, receiver, _), count in links.items():
            cost = self.costs.get(receiver, {}).get(sender)
            total += count * (self.costs[sender][receiver] if cost is None else cost)
        return total

    def saves(self, share: float) -> bool:
        """Return whether the solution saves more than this share of the former cost."""
        return self.saved > share * self.former_cost

    def solve(self, random: Random) -> Generator[None, None, dict[ProcessId, LinkChange]]:
        """Yield after each slice of work; return the changes, none if every solution found costs more."""
        yield from self._read_offers()
        sources = sorted({key.source for key in (*self.entries, *self.exits)})
        random.shuffle(sources)
        chosen = self._choose_sources(sources)
        while chosen:
            links = yield from self._solve(chosen, random)
            yield
            if links is not None and (changes := self._changes(chosen, links)) is not None:
                yield
                return changes
            random.shuffle(chosen)  # the relaxation of fewer data nodes is more often integral
            chosen = chosen[: len(chosen) // 2]
        return {}

    def _choose_sources(self, sources: list[ProcessId]) -> list[ProcessId]:
        """Return as many of the data nodes as fit into ROWS_MAX, at least one."""
        rows = sum(map(len, self.nodes))
        chosen: list[ProcessId] = []
        for source in sources:
            rows += sum(key.source == source for table in (self.entries, self.exits) for key in table)
            if chosen and rows > ROWS_MAX:
                break
            chosen.append(source)
        return chosen

    def _solve(self, chosen: list[ProcessId], random: Random) -> Generator[None, None, Links | None]:
        """Return the cheapest links for the flows of the chosen data nodes; None: none were found."""
        entries = [key for key in sorted(self.entries) if key.source in chosen]
        exits = [key for key in sorted(self.exits) if key.source in chosen]
        capacity = [[self._capacity(at, name, chosen) for name in names] for at, names in enumerate(self.nodes)]
        arcs = []
        for senders, receivers in pairwise(self.nodes):
            arcs.append((yield from self._cost_matrix(receivers, senders)))
        number = {source: i for i, source in enumerate(chosen)}
        starts = yield from self._terminals(entries, self.entries, number)
        ends = yield from self._terminals(exits, self.exits, number)
        current = WindowPaths(
            self.nodes,
            {key: units for key, units in self.links.items() if key[2] in number},
            {key: self.entries[key] for key in entries},
            {key: self.exits[key] for key in exits},
        )
        problem = PathProgram(capacity, arcs, starts, ends, current.paths())
        yield
        flows = yield from solve(problem, random)
        yield
        return None if flows is None else self._as_links(flows, chosen, entries, exits)

    def _capacity(self, layer: int, name: ProcessId, chosen: list[ProcessId]) -> int:
        """Return the capacity of a member for the flows of the chosen data nodes: without that of all other flows."""
        into: dict[ProcessId, int] = {}
        out: dict[ProcessId, int] = {}
        for sums, table in ((into, self.inflow[name]), (out, self.outflow[name])):
            for (_, source), count in table.items():
                sums[source] = sums.get(source, 0) + count
        held = {source: max(into.get(source, 0), out.get(source, 0)) for source in {**into, **out}}
        fixed = sum(count for source, count in held.items() if source not in chosen)
        movable = sum(count for source, count in held.items() if source in chosen)
        return max(movable, self.offers[layer][name].capacity - fixed)

    def _cost_matrix(self, members: Sequence[ProcessId], others: Sequence[ProcessId]) -> Generator[None, None, Numbers]:
        """Return the link costs [member, other], as reported by the members; infinite: there is no link."""
        costs = np.full((len(members), len(others)), INFINITE)
        for number, name in enumerate(members):
            own = self.costs[name]
            costs[number] = [own.get(other, INFINITE) for other in others]
            if number % MEMBERS_PER_SLICE == 0:
                yield
        return costs

    def _terminals(
        self, keys: Sequence[WindowEnd], counts: Mapping[WindowEnd, int], number: Mapping[ProcessId, int]
    ) -> Generator[None, None, list[Terminal]]:
        """Return the terminals of the program. number: the commodity of each data node."""
        outside = sorted({(layer, node) for layer, _, node, outside in keys if outside})
        costs: dict[tuple[int, ProcessId, bool], Numbers] = {}
        for layer, members in enumerate(self.nodes):
            nodes = [node for at, node in outside if at == layer]
            table = yield from self._cost_matrix(members, nodes)
            costs |= {(layer, node, True): table[:, i] for i, node in enumerate(nodes)}
            for i, name in enumerate(members):
                costs[layer, name, False] = alone = np.full(len(members), INFINITE)
                alone[i] = 0.0
        return [
            Terminal(number[key.source], key.layer, counts[key], costs[key.layer, key.node, key.outside])
            for key in keys
        ]

    def _as_links(
        self, flows: Flows, chosen: list[ProcessId], entries: list[WindowEnd], exits: list[WindowEnd]
    ) -> Links:
        """Return the units on each link, from the flows of the program."""
        links: Links = {}
        for (layer, a, b, commodity), units in flows.items():
            source = chosen[commodity]
            if layer == ENTERS:
                at, _, node, outside = entries[a]
                if outside:
                    links[node, self.nodes[at][b], source] = units
            elif layer == LEAVES:
                at, _, node, outside = exits[b]
                if outside:
                    link = self.nodes[at][a], node, source
                    links[link] = links.get(link, 0) + units
            else:
                links[self.nodes[layer][a], self.nodes[layer + 1][b], source] = units
        return links

    def _changes(self, chosen: list[ProcessId], links: Links) -> dict[ProcessId, LinkChange] | None:
        """Return the changes from the present links to these; None: these would cost more."""
        present = {key: units for key, units in self.links.items() if key[2] in chosen}
        cost = self.cost(present)
        saved = cost - self.cost(links)
        if saved < -NEGLIGIBLE * cost:
            return None
        self.saved = saved if saved > NEGLIGIBLE * cost else 0.0
        self.former_cost = cost
        changes: dict[ProcessId, LinkChange] = {}
        for key in sorted({**present, **links}):
            units = links.get(key, 0) - present.get(key, 0)
            if units:
                sender, receiver, source = key
                changes.setdefault(sender, LinkChange()).outflow[receiver, source] = units
                changes.setdefault(receiver, LinkChange()).inflow[sender, source] = units
        return changes
