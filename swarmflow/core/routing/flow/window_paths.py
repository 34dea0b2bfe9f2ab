"""The paths that units take through a window before it is solved: the first columns of the solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.simplex import NodePath

Links = dict[tuple[ProcessId, ProcessId, ProcessId], int]  # (sender, receiver, data node) -> units


class WindowEnd(NamedTuple):
    """Where units enter a window, or leave it: a neighbour outside, or a member at which they have to stay."""

    layer: int  # of the member, or of the members that the neighbour is linked to
    source: ProcessId  # their data node
    node: ProcessId
    outside: bool  # whether the node is a neighbour of that layer and no member


class WindowPaths:
    """Decomposes the links of a window into paths.

    nodes: the members of each layer. entries, exits: units by end, in the order of the program's terminals.
    """

    def __init__(
        self,
        nodes: Sequence[Sequence[ProcessId]],
        links: Links,
        entries: Mapping[WindowEnd, int],
        exits: Mapping[WindowEnd, int],
    ) -> None:
        # member -> (layer, index in it)
        self.at = {name: (layer, i) for layer, names in enumerate(nodes) for i, name in enumerate(names)}
        self.links = dict(links)  # units that no path has taken yet
        self.entries = entries
        self.exits = dict(exits)  # units that no path has taken yet
        # (sender, data node) -> receivers
        self.receivers: dict[tuple[ProcessId, ProcessId], list[ProcessId]] = {}
        for sender, receiver, source in links:
            self.receivers.setdefault((sender, source), []).append(receiver)

    def paths(self) -> list[NodePath]:
        """Return the paths. Units whose links do not lead to an exit are left out."""
        number = {key: i for i, key in enumerate(self.exits)}
        found = []
        for entry, (key, count) in enumerate(self.entries.items()):
            left = count
            while left > 0 and (path := self._follow(key)) is not None:
                links, end = path
                units = min(left, self.exits[end], *(self.links[link] for link in links))
                left -= units
                self.exits[end] -= units
                for link in links:
                    self.links[link] -= units
                names = [key.node, *(receiver for _, receiver, _ in links)]
                inside = [self.at[name] for name in names if name in self.at]
                found.append(NodePath(entry, number[end], inside[0][0], tuple(i for _, i in inside)))
        return found

    def _follow(self, key: WindowEnd) -> tuple[list[tuple[ProcessId, ProcessId, ProcessId]], WindowEnd] | None:
        """Return the links from an entry to an exit that has units left, and that exit."""
        _, source, node, _ = key
        links: list[tuple[ProcessId, ProcessId, ProcessId]] = []
        while True:
            if node in self.at:
                end = WindowEnd(self.at[node][0], source, node, False)
                if self.exits.get(end, 0) > 0:
                    return links, end
            onward = (r for r in self.receivers.get((node, source), ()) if self.links[node, r, source] > 0)
            receiver = next(onward, None)
            if receiver is None:
                return None
            links.append((node, receiver, source))
            if receiver not in self.at:
                end = WindowEnd(self.at[node][0], source, receiver, True)
                return (links, end) if self.exits.get(end, 0) > 0 else None
            node = receiver
