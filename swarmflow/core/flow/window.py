"""A window of neighbouring stages as one problem: what its members showed, solved anew, gives what has to change."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import numpy as np

from swarmflow.core.flow.messages import Locked
from swarmflow.core.flow.node_types import Link
from swarmflow.core.flow.simplex import INFINITE, Numbers, PathProgram, Terminal
from swarmflow.core.flow.whole import ENTERS, LEAVES, Flows, solve
from swarmflow.core.flow.window_paths import End, Links, WindowPaths
from swarmflow.core.types import ProcessId

Sides = Mapping[ProcessId, Mapping[Link, int]]

NEGLIGIBLE = 1e-9
MEMBERS_A_SLICE = 32  # are read before others have their turn: about a millisecond
ROWS_MAX = 500  # of the linear program; a window with more leaves some data nodes' flows as they are


@dataclass(slots=True)
class LinkChange:
    """What one participant has to change, by (other end, data node)."""

    inflow: dict[tuple[ProcessId, ProcessId], int] = field(default_factory=dict)
    outflow: dict[tuple[ProcessId, ProcessId], int] = field(default_factory=dict)


class Window:
    """`offers[layer][member]`: up to three stages. before, after: neighbours outside that stand still on that side, and
    what they have there. What only one end of a link knows of stays as it is, and is settled between the two.

    A unit's way through the window begins and ends at a terminal. Where the neighbour outside stands still, the
    terminal is that neighbour, and the unit may come to (or leave from) another member of that layer. Where it does
    not, or where the unit hangs loose, it keeps its member.
    """

    def __init__(self, offers: list[dict[ProcessId, Locked]], before: Sides, after: Sides) -> None:
        self.offers = offers
        self.nodes = [sorted(layer) for layer in offers]
        self.costs: dict[ProcessId, dict[ProcessId, float]] = {}
        self.inflow: dict[ProcessId, dict[Link, int]] = {}
        self.outflow: dict[ProcessId, dict[Link, int]] = {}
        self.before, self.after = before, after
        self.saved = self.before_it = 0.0
        self.links: Links = {}
        self.entries: dict[End, int] = {}
        self.exits: dict[End, int] = {}

    def _open(self) -> Generator[None, None, None]:
        """Read what the members showed."""
        for layer in self.offers:
            for number, (name, offer) in enumerate(layer.items()):
                self.costs[name] = dict(offer.costs)
                self.inflow[name] = {(b, s): n for b, s, n in offer.inflow}
                self.outflow[name] = {(a, s): n for a, s, n in offer.outflow}
                if number % MEMBERS_A_SLICE == 0:
                    yield
        for at, members in enumerate(self.nodes):
            for name in members:
                self._read(at, name)
            yield

    def _read(self, layer: int, name: ProcessId) -> None:
        """Sort one member's units into links of the window and terminals."""
        into: dict[ProcessId, int] = {}
        out: dict[ProcessId, int] = {}
        for sums, outward, table, ends in (
            (into, False, self.inflow[name], self.entries),
            (out, True, self.outflow[name], self.exits),
        ):
            for (node, source), count in table.items():
                sums[source] = sums.get(source, 0) + count
                known, outside = self._far_end(layer, node, outward)
                agreed = min(count, known.get((name, source), 0))
                if agreed:
                    self.links[(name, node, source) if outward else (node, name, source)] = agreed
                if outside:
                    self._terminal(ends, (layer, source, node, True), agreed)
                self._terminal(ends, (layer, source, name, False), count - agreed)
        for source in {**into, **out}:
            loose = into.get(source, 0) - out.get(source, 0)
            self._terminal(self.exits, (layer, source, name, False), loose)
            self._terminal(self.entries, (layer, source, name, False), -loose)

    def _far_end(self, layer: int, node: ProcessId, outward: bool) -> tuple[Mapping[Link, int], bool]:
        """What the other end of a link has on that side, nothing if it takes no part; whether it is outside."""
        at = layer + (1 if outward else -1)
        if 0 <= at < len(self.offers):
            return (self.inflow if outward else self.outflow)[node] if node in self.offers[at] else {}, False
        return (self.after if outward else self.before).get(node, {}), True

    @staticmethod
    def _terminal(table: dict[End, int], key: End, count: int) -> None:
        if count > 0:
            table[key] = table.get(key, 0) + count

    def cost(self, links: Mapping[tuple[ProcessId, ProcessId, ProcessId], int]) -> float:
        """Of these links together."""
        total = 0.0
        for (sender, receiver, _), count in links.items():
            known = self.costs.get(receiver, {}).get(sender)
            total += count * (self.costs[sender][receiver] if known is None else known)
        return total

    def saves(self, share: float) -> bool:
        """Whether the solution saves more than this share of what the links cost before it."""
        return self.saved > share * self.before_it

    def solve(self, random: Random) -> Generator[None, None, dict[ProcessId, LinkChange]]:
        """Yields now and then; returns what has to change, nothing if nothing would save anything."""
        yield from self._open()
        sources = sorted({key[1] for key in (*self.entries, *self.exits)})
        random.shuffle(sources)
        chosen = self._fitting(sources)
        while chosen:
            links = yield from self._solve(chosen, random)
            yield
            if links is not None and (changes := self._changes(chosen, links)) is not None:
                yield
                return changes
            random.shuffle(chosen)  # what was rounded badly mostly is whole with fewer data nodes
            chosen = chosen[: len(chosen) // 2]
        return {}

    def _fitting(self, sources: list[ProcessId]) -> list[ProcessId]:
        """As many data nodes as the rows allow, at least one."""
        rows = sum(map(len, self.nodes))
        chosen: list[ProcessId] = []
        for source in sources:
            rows += sum(key[1] == source for table in (self.entries, self.exits) for key in table)
            if chosen and rows > ROWS_MAX:
                break
            chosen.append(source)
        return chosen

    def _solve(self, chosen: list[ProcessId], random: Random) -> Generator[None, None, Links | None]:
        entries = [key for key in sorted(self.entries) if key[1] in chosen]
        exits = [key for key in sorted(self.exits) if key[1] in chosen]
        capacity = [[self._capacity(at, name, chosen) for name in names] for at, names in enumerate(self.nodes)]
        arcs = []
        for senders, receivers in pairwise(self.nodes):
            arcs.append((yield from self._costs(receivers, senders)))
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
        """What the flows that stay as they are leave of a member."""
        into: dict[ProcessId, int] = {}
        out: dict[ProcessId, int] = {}
        for sums, table in ((into, self.inflow[name]), (out, self.outflow[name])):
            for (_, source), count in table.items():
                sums[source] = sums.get(source, 0) + count
        held = {source: max(into.get(source, 0), out.get(source, 0)) for source in {**into, **out}}
        fixed = sum(count for source, count in held.items() if source not in chosen)
        mine = sum(count for source, count in held.items() if source in chosen)
        return max(mine, self.offers[layer][name].capacity - fixed)

    def _costs(self, members: Sequence[ProcessId], others: Sequence[ProcessId]) -> Generator[None, None, Numbers]:
        """[member, other], as the members know them."""
        costs = np.full((len(members), len(others)), INFINITE)
        for number, name in enumerate(members):
            known = self.costs[name]
            costs[number] = [known.get(other, INFINITE) for other in others]
            if number % MEMBERS_A_SLICE == 0:
                yield
        return costs

    def _terminals(
        self, keys: Sequence[End], counts: Mapping[End, int], number: Mapping[ProcessId, int]
    ) -> Generator[None, None, list[Terminal]]:
        """number: of each data node."""
        outside = sorted({(layer, node) for layer, _, node, outside in keys if outside})
        costs: dict[tuple[int, ProcessId, bool], Numbers] = {}
        for layer, members in enumerate(self.nodes):
            nodes = [node for at, node in outside if at == layer]
            table = yield from self._costs(members, nodes)
            costs |= {(layer, node, True): table[:, i] for i, node in enumerate(nodes)}
            for i, name in enumerate(members):
                costs[layer, name, False] = alone = np.full(len(members), INFINITE)
                alone[i] = 0.0
        return [Terminal(number[key[1]], key[0], counts[key], costs[key[0], key[2], key[3]]) for key in keys]

    def _as_links(self, flows: Flows, chosen: list[ProcessId], entries: list[End], exits: list[End]) -> Links:
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
        """None: it would cost more than now."""
        old = {key: units for key, units in self.links.items() if key[2] in chosen}
        before = self.cost(old)
        saved = before - self.cost(links)
        if saved < -NEGLIGIBLE * before:
            return None
        self.saved = saved if saved > NEGLIGIBLE * before else 0.0
        self.before_it = before
        changes: dict[ProcessId, LinkChange] = {}
        for key in sorted({**old, **links}):
            units = links.get(key, 0) - old.get(key, 0)
            if units:
                sender, receiver, source = key
                changes.setdefault(sender, LinkChange()).outflow[receiver, source] = units
                changes.setdefault(receiver, LinkChange()).inflow[sender, source] = units
        return changes
