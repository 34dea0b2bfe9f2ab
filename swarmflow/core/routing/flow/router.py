"""The router that follows flows: a free unit of the microbatch's trainer, else the shortest expected delay."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import Link
from swarmflow.core.routing.link_estimates import LinkEstimates
from swarmflow.core.routing.router import Choice
from swarmflow.core.routing.shortest import Shortest

Key = TypeVar("Key")
NO_FLOWS: Mapping[Link, int] = {}
FLOW_DELAY_MAX = 1.15  # a flow is followed while its delay is at most this multiple of the shortest one


@dataclass(slots=True)
class FlowRouter:
    """Routes along the negotiated flows. A unit of flow carries one microbatch at a time."""

    shortest: Shortest  # over the same peers; chooses where no unit is free
    outflow: Mapping[Link, int] = field(default_factory=lambda: NO_FLOWS)  # units by (peer, trainer), as negotiated
    busy: dict[Link, int] = field(default_factory=dict)  # microbatches held, by (peer, trainer), on a flow or not
    held: dict[ProcessId, int] = field(default_factory=dict)  # microbatches held, by peer
    followed: int = 0  # choices along a flow since the last call of `counted`
    otherwise: int = 0  # choices by the shortest delay since then
    probes: bool = True
    waits: bool = True

    @property
    def links(self) -> LinkEstimates:
        """All measurements."""
        return self.shortest.links

    def begin_epoch(self, processes: Iterable[ProcessId]) -> None:
        """Begin an epoch with these peers of the stage, which hold no microbatch."""
        self.busy.clear()
        self.held.clear()
        self.shortest.begin_epoch(processes)

    def go_on(self) -> None:
        """Begin an epoch with the same peers and what they hold."""
        self.shortest.go_on()

    def add_peer(self, process: ProcessId) -> None:
        """Add a peer to the stage."""
        self.shortest.add_peer(process)

    def remove_peer(self, process: ProcessId) -> None:
        """Remove a peer from the stage."""
        self.shortest.remove_peer(process)

    def choose(self, exclude: Collection[ProcessId] = (), source: ProcessId | None = None) -> Choice | None:
        """Return the peer with the shortest delay among those with a free unit, or among all if none has one.

        Flows minimise the cost of whole paths and ignore queues: a flow is not followed while another peer is much
        faster (FLOW_DELAY_MAX).
        """
        nearest = self.shortest.choose(exclude)
        if nearest is None or source is None:
            self.otherwise += nearest is not None
            return nearest
        delays = [(self.shortest.delay_s(process), process) for process in self._free(source) if process not in exclude]
        best = min(((delay_s, process) for delay_s, process in delays if delay_s is not None), default=None)
        nearest_s = self.shortest.delay_s(nearest.process)
        if best is None or best[0] > FLOW_DELAY_MAX * (self.shortest.usual_s if nearest_s is None else nearest_s):
            self.otherwise += 1
            return nearest
        self.followed += 1
        return Choice(best[1], f"along a flow, for {source}: {self.held.get(best[1], 0)} units are taken")

    def _free(self, source: ProcessId) -> list[ProcessId]:
        """Return the peers with a free unit of this trainer; if there is none, those with one of any trainer.

        A microbatch that has left its flow may be at a peer that no flow of its trainer crosses. Another trainer's unit
        costs little more: only a short message returns to a trainer.
        """
        units: dict[ProcessId, int] = {}
        own: list[ProcessId] = []
        for (process, of), count in self.outflow.items():
            units[process] = units.get(process, 0) + count
            if of == source and self.busy.get((process, of), 0) < count:
                own.append(process)
        free = [process for process, count in units.items() if self.held.get(process, 0) < count]
        return [process for process in own if process in free] or free

    def counted(self) -> list[tuple[str, int]]:
        """Return the number of choices since the last call, by kind, and reset it."""
        found = [(name, n) for name, n in (("flow", self.followed), ("shortest", self.otherwise)) if n]
        self.followed = self.otherwise = 0
        return found

    def add_held(self, process: ProcessId, source: ProcessId | None, more: int) -> None:
        """Add `more` to the microbatches of a trainer that a peer holds; below 0 once one is done, denied or lost."""
        if source is not None:
            _add(self.busy, (process, source), more)
            _add(self.held, process, more)

    def set_pending(self, process: ProcessId, count: int) -> None:
        """Set the number of this sender's microbatches that a peer has not passed on yet."""
        self.shortest.set_pending(process, count)

    def refresh(self, process: ProcessId) -> None:
        """Use the new estimates for a peer."""
        self.shortest.refresh(process)

    def record_downstream(self, process: ProcessId, downstream_s: float) -> None:
        """Record a peer's downstream cost: the expected seconds of the best path beyond it, forth and back."""
        self.shortest.record_downstream(process, downstream_s)

    @property
    def downstream_s(self) -> float:
        """Return the expected seconds of the best path from here, forth and back."""
        return self.shortest.downstream_s


def _add(counts: dict[Key, int], key: Key, more: int) -> None:
    counts[key] = counts.get(key, 0) + more
    if counts[key] <= 0:
        del counts[key]
