"""The router that follows flows: along a free unit of the microbatch's trainer, else by the shortest expected delay."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from swarmflow.core.flow.measured import LinkTimes
from swarmflow.core.flow.node_types import Link
from swarmflow.core.iwrr import Choice
from swarmflow.core.shortest import Shortest
from swarmflow.core.types import ProcessId

Key = TypeVar("Key")
NO_FLOWS: Mapping[Link, int] = {}
DETOUR = 1.15  # a flow is left where the shortest way takes less than that by this factor


@dataclass(slots=True)
class FlowRouter:
    """shortest: over the same peers; it hears of every measurement, and decides where no unit is free.

    outflow: units by (peer, trainer), as they are negotiated beside the training. A unit carries one microbatch at a
    time: busy says how many of each trainer's are in a peer's hands, however they came there, and held how many in all.
    followed, otherwise: choices by a flow, and by the shortest delay, that were not counted yet.
    """

    shortest: Shortest
    outflow: Mapping[Link, int] = field(default_factory=lambda: NO_FLOWS)
    link_times: LinkTimes = field(default_factory=LinkTimes)
    busy: dict[Link, int] = field(default_factory=dict)
    held: dict[ProcessId, int] = field(default_factory=dict)
    followed: int = 0
    otherwise: int = 0

    def announce(self, processes: Iterable[ProcessId]) -> None:
        """These peers, and no others, serve the stage from now on, and hold nothing."""
        self.busy.clear()
        self.held.clear()
        self.shortest.announce(processes)

    def enter(self, process: ProcessId) -> None:
        """One more serves the stage."""
        self.shortest.enter(process)

    def ban(self, process: ProcessId) -> None:
        """Never choose this peer again until it is announced again."""
        self.shortest.ban(process)

    def choose(self, exclude: Collection[ProcessId] = (), source: ProcessId | None = None) -> Choice | None:
        """Of the peers with a free unit the one with the shortest delay; without one, of all.

        Flows are about the whole way of all microbatches, and know nothing of queues: where one would hold a microbatch
        up that has a much shorter way now, it is not followed.
        """
        nearest = self.shortest.choose(exclude)
        if nearest is None or source is None:
            self.otherwise += nearest is not None
            return nearest
        delays = [(self.shortest.delay_s(process), process) for process in self._free(source) if process not in exclude]
        best = min(((delay_s, process) for delay_s, process in delays if delay_s is not None), default=None)
        if best is None or best[0] > DETOUR * (self.shortest.delay_s(nearest.process) or 0.0):
            self.otherwise += 1
            return nearest
        self.followed += 1
        return Choice(best[1], f"along a flow, for {source}: {self.held.get(best[1], 0)} units are taken")

    def _free(self, source: ProcessId) -> list[ProcessId]:
        """Peers with a free unit of this trainer, or else of another one.

        One that has left its flow is where no flow of its trainer passes. What returns to a trainer is but a word, so
        that it matters little whose unit is taken.
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
        """Choices since this was asked before, by how they were made."""
        found = [(name, n) for name, n in (("flow", self.followed), ("shortest", self.otherwise)) if n]
        self.followed = self.otherwise = 0
        return found

    def carries(self, process: ProcessId, source: ProcessId | None, more: int) -> None:
        """So many more of this trainer's microbatches are in its hands; fewer, where one is done, denied or lost."""
        if source is not None:
            _add(self.busy, (process, source), more)
            _add(self.held, process, more)

    def awaits(self, process: ProcessId, count: int) -> None:
        """It has been given so many of this sender's microbatches that it has not passed on yet."""
        self.shortest.awaits(process, count)

    def measured(self, process: ProcessId, seconds: float, inside_s: float | None) -> None:
        """It has passed a microbatch on so long after it was sent. inside_s: after it had got it, if known."""
        self.shortest.measured(process, seconds, inside_s)

    def told(self, process: ProcessId, downstream_s: float) -> None:
        """How long the best way beyond it takes, forth and back."""
        self.shortest.told(process, downstream_s)

    def arrived(self, process: ProcessId, seconds: float, now: float) -> None:
        """The bytes of a microbatch were there so long after they were sent."""
        self.shortest.arrived(process, seconds, now)
        self.link_times.arrived(process, seconds, now)

    def probed(self, process: ProcessId, seconds: float, now: float) -> None:
        """They would be, by a small probe."""
        self.shortest.probed(process, seconds, now)
        self.link_times.probed(process, seconds, now)

    def rerouted(self, process: ProcessId, seconds: float) -> None:
        """They would be, on another way than before."""
        self.shortest.rerouted(process, seconds)
        self.link_times.rerouted(process, seconds)

    def knows(self, process: ProcessId) -> bool:
        """Whether the way to it needs no probe: it was measured, and not long ago."""
        return self.link_times.tensor_s(process) is not None

    @property
    def downstream_s(self) -> float:
        """How long the best way from here takes, forth and back."""
        return self.shortest.downstream_s


def _add(counts: dict[Key, int], key: Key, more: int) -> None:
    counts[key] = counts.get(key, 0) + more
    if counts[key] <= 0:
        del counts[key]
