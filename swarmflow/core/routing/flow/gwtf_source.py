"""A data node in GWTF's negotiation: the sink from which flows are built, and the source that closes them."""

from __future__ import annotations

from typing import Any

from swarmflow.core.protocol.messages.gwtf import (
    CheapestOutflow,
    DownstreamChanged,
    FlowApproved,
    FlowDenied,
    FlowDropped,
    FlowRejected,
    RequestFlow,
    UpstreamChanged,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.gwtf_flows import FlowEnd, Outflow, Outflows
from swarmflow.core.routing.flow.node_types import INFINITE, FlowSend, Link, View


class GwtfSource:
    """The GWTF machine of a data node. It begins with an unpaired outflow of cost 0 for each flow that it wants."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.sink = Outflows(view)  # where flows end
        self.head = Outflows(view)  # where closed flows begin
        self._requested: dict[ProcessId, None] = {}  # nodes to which a request is open
        self._offered_cost: dict[ProcessId, float] = {}  # of its cheapest unpaired outflow, by node of the first stage
        for _ in range(view.capacity):
            unit = Outflow(self.sink.name(), view.me, 0.0)
            self.sink.table[unit.flow] = unit

    def tick(self, now: float) -> list[FlowSend]:
        """Request the cheapest unpaired outflows of the first stage, one from each node at a time."""
        sends = self.sink.broadcast()
        offers = {
            node: cost for node, cost in self._offered_cost.items() if cost < INFINITE and node not in self._requested
        }
        for node in sorted(offers, key=lambda node: (self.view.cost[node] + offers[node], node)):
            if len(self.head.table) + len(self._requested) >= self.view.capacity:
                break
            self._requested[node] = None
            sends.append(FlowSend(node, RequestFlow(self.view.me, offers[node], self.head.name()), "closes a flow"))
        return sends

    def handle(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message and return the answers."""
        match message:
            case CheapestOutflow() if message.source == self.view.me:
                self._offered_cost[sender] = message.cost
            case FlowRejected():
                self._requested.pop(sender, None)
                self._offered_cost[sender] = message.cost
            case FlowApproved():
                self._requested.pop(sender, None)
                cost = message.cost + self.view.cost[sender]
                self.head.table[message.flow] = Outflow(
                    message.flow,
                    self.view.me,
                    cost,
                    FlowEnd(sender, message.downstream_flow),
                    sender_changes=message.sender_changes,
                    holder_changes=message.holder_changes,
                )
            case RequestFlow():
                return self.sink.requested(sender, message)
            case UpstreamChanged():
                return self.sink.upstream_changed(message)
            case DownstreamChanged():
                return self.head.downstream_changed(message)
            case FlowDenied():
                return self.head.denied(message)
            case FlowDropped():
                return self.sink.dropped(message)
        return []

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """Unpair the flows of a dead process."""
        self.view = self.sink.view = self.head.view = self.view.without(process)
        self._offered_cost.pop(process, None)
        self._requested.pop(process, None)
        sends = self.head.lose(process)
        for unit in self.sink.table.values():
            if unit.upstream is not None and unit.upstream.node == process:
                unit.upstream = None
        return sends

    def met(self, view: View) -> list[FlowSend]:
        """Replace the view: nodes have entered."""
        self.view = self.head.view = view
        return self.sink.greet(view)

    @property
    def inflow(self) -> dict[Link, int]:
        """Return the units that return to this node, by link."""
        return self.sink.inflow()

    @property
    def outflow(self) -> dict[Link, int]:
        """Return the units that leave this node, by link."""
        return self.head.outflow()

    @property
    def unfinished(self) -> bool:
        """Return False: no decision takes long."""
        return False

    @property
    def held(self) -> int:
        """Return the number of own flows."""
        return len(self.head.table)
