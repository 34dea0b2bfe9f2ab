"""The words of the flow's graph: what a node knows, what a link costs, what a node says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from swarmflow.core.types import ProcessId

INFINITE = float("inf")
Link = tuple[ProcessId, ProcessId]  # (the node at the other end, the data node whose microbatches these are)


def link_cost_s(
    compute_s: tuple[float, float], latency_s: tuple[float, float], bytes_per_s: tuple[float, float], size_bytes: float
) -> float:
    """The cost of a link in seconds (GWTF, equation 1): half of both computations, mean latency, transmission.

    Each pair holds the number of one end, or of one direction, and of the other. ValueError: a bandwidth that is not
    above 0, or a negative time or size.
    """
    if min(*compute_s, *latency_s, size_bytes) < 0 or min(bytes_per_s) <= 0:
        raise ValueError("times and sizes are not negative, bandwidths are above 0")
    return sum(compute_s) / 2 + sum(latency_s) / 2 + 2 * size_bytes / sum(bytes_per_s)


@dataclass(frozen=True, slots=True)
class View:
    """What a node knows of the swarm; the lists may be incomplete, and it knows nobody else but by messages.

    stage: its own, of so many; -1 for a data node.

    before, after: nodes of the stages beside its own, in the order of the pipeline, which is a ring: data nodes stand
    before the first stage and after the last. beside: the others of its own stage. cost: of the link to each of
    before and after. capacity: microbatches at a time; of a data node, how many flows it wants.
    """

    me: ProcessId
    stage: int
    stages: int
    capacity: int
    before: tuple[ProcessId, ...]
    beside: tuple[ProcessId, ...]
    after: tuple[ProcessId, ...]
    cost: Mapping[ProcessId, float]

    def without(self, process: ProcessId) -> View:
        """The same, where this one is dead."""
        before, beside, after = (
            tuple(node for node in nodes if node != process) for nodes in (self.before, self.beside, self.after)
        )
        return replace(self, before=before, beside=beside, after=after)


@dataclass(frozen=True, slots=True)
class FlowSend:
    """Send a message to one node, and why."""

    to: ProcessId
    message: Any
    reason: str = ""


class FlowNode(Protocol):
    """A machine that negotiates flows. It has no clock: every call brings the time, and gives what is to be sent."""

    view: View

    def handle(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """A message has come."""
        ...

    def tick(self, now: float) -> list[FlowSend]:
        """Some time has passed."""
        ...

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """A process that this node knows is dead."""
        ...

    @property
    def inflow(self) -> Mapping[Link, int]:
        """Microbatches that come in at a time, by (node before, data node)."""
        ...

    @property
    def outflow(self) -> Mapping[Link, int]:
        """Microbatches that go out at a time, by (node after, data node)."""
        ...

    @property
    def unfinished(self) -> bool:
        """Whether there is more to compute: tick it again at once."""
        ...

    @property
    def held(self) -> int:
        """What is taken of the capacity."""
        ...
