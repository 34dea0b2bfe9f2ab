"""The ways that units take through a window now: what a solver begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarmflow.core.flow.simplex import Path
from swarmflow.core.types import ProcessId

Links = dict[tuple[ProcessId, ProcessId, ProcessId], int]  # (from, to, data node) -> units
End = tuple[int, ProcessId, ProcessId, bool]  # (layer, data node, node, whether that node is outside)


class WindowPaths:
    """nodes: the members of each layer; entries, exits: numbered in their order, as in the problem."""

    def __init__(
        self, nodes: Sequence[Sequence[ProcessId]], links: Links, entries: Mapping[End, int], exits: Mapping[End, int]
    ) -> None:
        self.at = {name: (layer, i) for layer, names in enumerate(nodes) for i, name in enumerate(names)}
        self.links = dict(links)
        self.entries = entries
        self.exits = dict(exits)
        self.receivers: dict[tuple[ProcessId, ProcessId], list[ProcessId]] = {}
        for sender, receiver, source in links:
            self.receivers.setdefault((sender, source), []).append(receiver)

    def paths(self) -> list[Path]:
        """One for each way; units whose way is not to be seen are left out."""
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
                names = [key[2], *(receiver for _, receiver, _ in links)]
                inside = [self.at[name] for name in names if name in self.at]
                found.append(Path(entry, number[end], inside[0][0], tuple(i for _, i in inside)))
        return found

    def _follow(self, key: End) -> tuple[list[tuple[ProcessId, ProcessId, ProcessId]], End] | None:
        """The links from an entry to an exit that still has units to get."""
        _, source, node, _ = key
        links: list[tuple[ProcessId, ProcessId, ProcessId]] = []
        while True:
            if node in self.at:
                end = self.at[node][0], source, node, False
                if self.exits.get(end, 0) > 0:
                    return links, end
            onward = (r for r in self.receivers.get((node, source), ()) if self.links[node, r, source] > 0)
            receiver = next(onward, None)
            if receiver is None:
                return None
            links.append((node, receiver, source))
            if receiver not in self.at:
                end = self.at[node][0], source, receiver, True
                return (links, end) if self.exits.get(end, 0) > 0 else None
            node = receiver
