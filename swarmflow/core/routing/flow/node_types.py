"""The types that all flow machines share: a node's view, the cost of a link, a message to send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from swarmflow.core.protocol.types import ProcessId

INFINITE = float("inf")
COST_MAX_S = 1e6  # of a link, a path, or a measured time
Link = tuple[ProcessId, ProcessId]  # (the node at the other end, the data node whose microbatches it carries)


def link_cost_s(
    compute_s: tuple[float, float], latency_s: tuple[float, float], bytes_per_s: tuple[float, float], size_bytes: float
) -> float:
    """Return the cost of a link in seconds (GWTF, equation 1): mean compute time, mean latency, and transmission time.

    Each pair holds the values of both ends, or of both directions. Raises ValueError where a bandwidth is not above 0,
    or a time or the size is negative.
    """
    if min(*compute_s, *latency_s, size_bytes) < 0 or min(bytes_per_s) <= 0:
        raise ValueError("times and sizes are not negative, bandwidths are above 0")
    return sum(compute_s) / 2 + sum(latency_s) / 2 + 2 * size_bytes / sum(bytes_per_s)


@dataclass(frozen=True, slots=True)
class View:
    """A node's view of the swarm. The lists may be incomplete; messages may name other nodes.

    The pipeline is a ring: the data nodes are before the first stage and after the last one.
    """

    me: ProcessId
    stage: int  # its own stage, from 0; -1: it is a data node
    stages: int  # number of stages, without the data nodes
    capacity: int  # microbatches that it holds at a time; of a data node, the flows that it wants
    before: tuple[ProcessId, ...]  # nodes of the stage before
    beside: tuple[ProcessId, ...]  # the other nodes of its own stage
    after: tuple[ProcessId, ...]  # nodes of the stage after
    cost: Mapping[ProcessId, float]  # of the link to each node of `before` and `after`; in a run, in seconds

    @property
    def linked(self) -> dict[ProcessId, None]:
        """Return all neighbours, each once."""
        return dict.fromkeys((*self.before, *self.beside, *self.after))

    def without(self, process: ProcessId) -> View:
        """Return the view without a process that is dead, or no neighbour any more."""
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
    """A machine that negotiates flows. It has no clock: the caller passes the time and sends the returned messages."""

    view: View

    def handle(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message."""
        ...

    def tick(self, now: float) -> list[FlowSend]:
        """Do what is due at this time: requests, repetitions and timeouts."""
        ...

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """Handle the death of a process that this node knows."""
        ...

    @property
    def inflow(self) -> Mapping[Link, int]:
        """Return the units of inflow, each one microbatch at a time, by (node before, data node)."""
        ...

    @property
    def outflow(self) -> Mapping[Link, int]:
        """Return the units of outflow, each one microbatch at a time, by (node after, data node)."""
        ...

    @property
    def unfinished(self) -> bool:
        """Return whether a computation is unfinished, so that `tick` should be called again at once."""
        ...

    @property
    def held(self) -> int:
        """Return the units of capacity that are in use."""
        ...
