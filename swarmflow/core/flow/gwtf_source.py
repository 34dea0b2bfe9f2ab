"""A data node in GWTF's negotiation: the sink that flows are built from, and the source that closes them."""

from __future__ import annotations

from typing import Any

from swarmflow.core.flow.gwtf_flows import Outflow, Outflows
from swarmflow.core.flow.gwtf_messages import (
    CostIs,
    Deny,
    Dropped,
    FlowApproved,
    FlowRejected,
    NewAfter,
    NewBefore,
    RequestFlow,
)
from swarmflow.core.flow.node_types import INFINITE, FlowSend, Link, View
from swarmflow.core.types import ProcessId


class GwtfSource:
    """Begins with as many unpaired outflows (as the sink, at cost 0) and inflows (as the source) as it wants flows."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.sink = Outflows(view)
        self.head = Outflows(view)
        self._asked: dict[ProcessId, None] = {}
        self._known: dict[ProcessId, float] = {}
        for _ in range(view.capacity):
            unit = Outflow(self.sink.name(), view.me, 0.0)
            self.sink.table[unit.flow] = unit

    def tick(self, now: float) -> list[FlowSend]:
        """Ask for the cheapest unpaired outflows of the first stage, one of a node at a time."""
        sends = self.sink.broadcast()
        offers = {node: cost for node, cost in self._known.items() if cost < INFINITE and node not in self._asked}
        for node in sorted(offers, key=lambda node: (self.view.cost[node] + offers[node], node)):
            if len(self.head.table) + len(self._asked) >= self.view.capacity:
                break
            self._asked[node] = None
            sends.append(FlowSend(node, RequestFlow(self.view.me, offers[node], self.head.name()), "closes a flow"))
        return sends

    def handle(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """A message has come."""
        match message:
            case CostIs() if message.source == self.view.me:
                self._known[sender] = message.cost
            case FlowRejected():
                self._asked.pop(sender, None)
                self._known[sender] = message.cost
            case FlowApproved():
                self._asked.pop(sender, None)
                cost = message.cost + self.view.cost[sender]
                self.head.table[message.flow] = Outflow(
                    message.flow, self.view.me, cost, sender, message.below, turn=message.turn, moves=message.moves
                )
            case RequestFlow():
                return self.sink.requested(sender, message)
            case NewBefore():
                return self.sink.new_before(message)
            case NewAfter():
                return self.head.new_after(message)
            case Deny():
                return self.head.denied(message)
            case Dropped():
                return self.sink.dropped(message)
        return []

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """Its flows are to be found anew."""
        self.view = self.sink.view = self.head.view = self.view.without(process)
        self._known.pop(process, None)
        self._asked.pop(process, None)
        sends = self.head.lose(process)
        for unit in self.sink.table.values():
            if unit.before == process:
                unit.before = unit.above = None
        return sends

    def met(self, view: View) -> list[FlowSend]:
        """Others are there now, too. view: with them."""
        self.view = self.head.view = view
        return self.sink.greet(view)

    @property
    def inflow(self) -> dict[Link, int]:
        """What returns."""
        return self.sink.inflow()

    @property
    def outflow(self) -> dict[Link, int]:
        """What sets out."""
        return self.head.outflow()

    @property
    def unfinished(self) -> bool:
        """Never: a decision is a few comparisons."""
        return False

    @property
    def held(self) -> int:
        """Flows that set out."""
        return len(self.head.table)
