"""Which peer a microbatch goes to: along a flow of its data node where one is free, else as IWRR says."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from swarmflow.core.flow.words import FlowNode, Link
from swarmflow.core.iwrr import Choice, Iwrr
from swarmflow.core.types import ProcessId


@dataclass(slots=True)
class NextHop:
    """flows: the negotiation of this process. fallback: over the same peers; it hears of every measurement.

    A unit of flow carries one microbatch at a time: it is taken when a microbatch is sent along it, and free again when
    that is done, denied or lost.
    """

    flows: FlowNode
    fallback: Iwrr
    busy: dict[Link, int] = field(default_factory=dict)

    def choose(self, source: ProcessId, exclude: Collection[ProcessId] = ()) -> Choice | None:
        """The next hop for a microbatch of this data node, which takes a unit; None: nobody is left."""
        free = [
            (self.busy.get(link, 0) / count, link[0])
            for link, count in self.flows.outflow.items()
            if link[1] == source and link[0] not in exclude and self.busy.get(link, 0) < count
        ]
        if not free:
            return self.fallback.choose(exclude)
        _, process = min(free)
        link = process, source
        self.busy[link] = self.busy.get(link, 0) + 1
        return Choice(process, f"flow {self.busy[link]} of {self.flows.outflow[link]} to it")

    def finished(self, process: ProcessId, source: ProcessId) -> None:
        """A microbatch that went there is done, was denied, or is lost: its unit, if it had one, is free again."""
        link = process, source
        left = self.busy.get(link, 0) - 1
        if left > 0:
            self.busy[link] = left
        else:
            self.busy.pop(link, None)

    def gone(self, process: ProcessId) -> None:
        """It is dead: nothing is on its way there any more."""
        for link in [link for link in self.busy if link[0] == process]:
            del self.busy[link]
        self.fallback.ban(process)
