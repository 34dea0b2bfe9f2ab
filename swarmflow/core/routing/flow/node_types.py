"""The types that all flow machines share: a node's view, the cost of a link, a message to send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from swarmflow.core.protocol.types import ProcessId

INFINITE = float("inf")
Link = tuple[ProcessId, ProcessId]  # (the node at the other end, the data node whose microbatches these are)


def link_cost_s(
    compute_s: tuple[float, float], latency_s: tuple[float, float], bytes_per_s: tuple[float, float], size_bytes: float
) -> float:
    """Return the cost of a link in seconds (GWTF, equation 1): half of both computations, mean latency, transmission.

    Each pair holds the values of both ends, or of both directions. Raises ValueError where a bandwidth is not above 0,
    or a time or the size is negative.
    """
    if min(*compute_s, *latency_s, size_bytes) < 0 or min(bytes_per_s) <= 0:
        raise ValueError("times and sizes are not negative, bandwidths are above 0")
    return sum(compute_s) / 2 + sum(latency_s) / 2 + 2 * size_bytes / sum(bytes_per_s)


@dataclass(frozen=True, slots=True)
class View:
    """What a node knows of the swarm. Its lists may be incomplete; all other nodes it knows from messages only.

    The pipeline is a ring: data nodes stand before the first stage and after the last one.
    """

    me: ProcessId
    stage: int  # its own stage, from 0; -1: it is a data node
    stages: int  # number of stages, the data nodes not counted
    capacity: int  # microbatches at a time; of a data node, the flows that it wants
    before: tuple[ProcessId, ...]  # nodes of the stage before
    beside: tuple[ProcessId, ...]  # the other nodes of its own stage
    after: tuple[ProcessId, ...]  # nodes of the stage after
    cost: Mapping[ProcessId, float]  # of the link to each node of `before` and `after`

    def without(self, process: ProcessId) -> View:
        """Return the view without a process that is dead."""
        before, beside, after = (
            tuple(node for node in nodes if node != process) for nodes in (self.before, self.beside, self.after)
        )
        return replace(self, before=before, beside=beside, after=after)


@dataclass(frozen=True, slots=True)
class FlowSend:
    """A message to one node."""

    to: ProcessId
    message: Any
    reason: str = ""  # why it is sent, for people who read traces


class FlowNode(Protocol):
    """A machine that negotiates flows. It has no clock: every call passes the time and returns messages to send."""

    view: View

    def handle(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message."""
        ...

    def tick(self, now: float) -> list[FlowSend]:
        """Do what is due."""
        ...

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """Handle the death of a process that this node knows."""
        ...

    @property
    def inflow(self) -> Mapping[Link, int]:
        """Return the microbatches that come in at a time, by (node before, data node)."""
        ...

    @property
    def outflow(self) -> Mapping[Link, int]:
        """Return the microbatches that go out at a time, by (node after, data node)."""
        ...

    @property
    def unfinished(self) -> bool:
        """Return whether a computation is unfinished: `tick` is to be called again at once."""
        ...

    @property
    def held(self) -> int:
        """Return the units of capacity that are in use."""
        ...
