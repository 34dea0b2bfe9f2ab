"""The links of one node: its inflow and outflow, the units that are unmatched, and audits with the other ends."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from swarmflow.core.protocol.messages.negotiation import Audit, Counts
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import FlowSend, Link


@dataclass(slots=True)
class Books:
    """The units of flow on the links of one node.

    A unit with an inflow and no outflow is loose; one with an outflow and no inflow is an orphan. Both hold capacity.
    """

    me: ProcessId
    capacity: int  # units that the node can hold; no message makes it hold more
    inflow: dict[Link, int] = field(init=False, default_factory=dict)  # units by link from the stage before
    outflow: dict[Link, int] = field(init=False, default_factory=dict)  # units by link to the stage after
    # (node, outward) of a link whose other end may have missed a change -> when it changed
    suspects: dict[tuple[ProcessId, bool], float] = field(init=False, default_factory=dict)
    _in: dict[ProcessId, int] = field(init=False, default_factory=dict)  # inflow by data node
    _out: dict[ProcessId, int] = field(init=False, default_factory=dict)  # outflow by data node

    def add(self, outward: bool, node: ProcessId, source: ProcessId, count: int, now: float) -> None:
        """Add units to one link; `count` may be negative. Raises ValueError where the link would have less than 0."""
        table, sums = (self.outflow, self._out) if outward else (self.inflow, self._in)
        left = table.get((node, source), 0) + count
        if left < 0:
            raise ValueError(f"{self.me}: {left} units on a link")
        if left:
            table[node, source] = left
        else:
            table.pop((node, source), None)
        sums[source] = sums.get(source, 0) + count
        self.suspects[node, outward] = now

    def loose(self, source: ProcessId) -> int:
        """Return the loose units of a data node; if negative, the number of its orphans."""
        return self._in.get(source, 0) - self._out.get(source, 0)

    @property
    def sources(self) -> list[ProcessId]:
        """Return the data nodes that have had a unit here."""
        return list(dict.fromkeys([*self._in, *self._out]))

    @property
    def held(self) -> int:
        """Return the units of capacity that are in use."""
        out = self._out
        total = 0
        for source, count in self._in.items():
            outward = out.get(source, 0)
            total += count if count > outward else outward
        for source, count in out.items():
            if source not in self._in:
                total += count
        return total

    @property
    def room(self) -> int:
        """Return the units of capacity that are free."""
        return self.capacity - self.held

    def neighbours(self, outward: bool) -> list[ProcessId]:
        """Return the nodes with a link on one side."""
        return list(dict.fromkeys(node for node, _ in (self.outflow if outward else self.inflow)))

    def counts(self, outward: bool) -> Counts:
        """Return the links of one side in the form in which they are sent."""
        table = self.outflow if outward else self.inflow
        return tuple((node, source, count) for (node, source), count in sorted(table.items()))

    def forget(self, node: ProcessId, now: float) -> bool:
        """Remove the links of a dead neighbour; return whether there were any."""
        found = False
        for outward, table in ((False, self.inflow), (True, self.outflow)):
            for key in [key for key in table if key[0] == node]:
                self.add(outward, node, key[1], -table[key], now)
                found = True
            self.suspects.pop((node, outward), None)
        return found

    def forget_idle(self, gone: Container[ProcessId]) -> None:
        """Forget those of the data nodes that are gone and have no unit here any more."""
        for source in self.sources:
            if source in gone and not self._in.get(source) and not self._out.get(source):
                self._in.pop(source, None)
                self._out.pop(source, None)

    def fits(self, inflow: Counts, outflow: Counts) -> bool:
        """Return whether these changes, one a link, leave none below 0, and the node no fuller than it is or may be."""
        for table, changes in ((self.inflow, inflow), (self.outflow, outflow)):
            if len({(node, source) for node, source, _ in changes}) < len(changes):
                return False
            if any(table.get((node, source), 0) + count < 0 for node, source, count in changes):
                return False
        into, out = dict(self._in), dict(self._out)
        for sums, changes in ((into, inflow), (out, outflow)):
            for _, source, count in changes:
                sums[source] = sums.get(source, 0) + count
        held = sum(max(into.get(source, 0), out.get(source, 0)) for source in {**into, **out})
        return held <= max(self.capacity, self.held)

    def change(self, counts: Iterable[tuple[ProcessId, ProcessId, int]], outward: bool, now: float) -> None:
        """Apply the changes of one side."""
        for node, source, count in counts:
            self.add(outward, node, source, count, now)

    def audit(self, node: ProcessId, outward: bool, answer: bool, reason: str) -> FlowSend:
        """Return a message that reports the units of a link to its other end."""
        table = self.outflow if outward else self.inflow
        counts = tuple((source, count) for (other, source), count in sorted(table.items()) if other == node)
        return FlowSend(node, Audit(counts, outward, answer), reason)

    def audited(self, node: ProcessId, message: Audit, now: float) -> bool:
        """Reduce the own units to those that the other end reports; return whether any were removed."""
        outward = not message.outward
        table = self.outflow if outward else self.inflow
        theirs = dict(message.counts)
        reduced = False
        for key in [key for key in table if key[0] == node]:
            surplus = table[key] - theirs.get(key[1], 0)
            if surplus > 0:
                self.add(outward, node, key[1], -surplus, now)
                reduced = True
        mine = {source: count for (other, source), count in table.items() if other == node}
        if all(mine.get(source, 0) == count for source, count in message.counts):
            self.suspects.pop((node, outward), None)
        return reduced
