"""The outflows of one node in GWTF's negotiation: their ends and costs, and which of them are unpaired."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from swarmflow.core.protocol.messages.gwtf import (
    CheapestOutflow,
    DownstreamChanged,
    FlowApproved,
    FlowDenied,
    FlowDropped,
    FlowId,
    FlowRejected,
    RequestFlow,
    UpstreamChanged,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import INFINITE, FlowSend, Link, View


@dataclass(frozen=True, slots=True)
class FlowEnd:
    """The outflow at the other end of a link."""

    node: ProcessId
    flow: FlowId  # the name of the outflow at that node


@dataclass(slots=True)
class Outflow:
    """One unit of flow at one node.

    Messages of different nodes overtake each other: a change whose counter is not above the stored one is ignored.
    """

    flow: FlowId
    source: ProcessId  # its data node
    cost: float  # from this node to the sink
    downstream: FlowEnd | None = None  # None: the node is the sink, or the inflow of a relay is unpaired
    upstream: FlowEnd | None = None  # None: the outflow is unpaired
    own_sender_changes: int = 0  # how often its upstream end has changed
    own_holder_changes: int = 0  # how often it has moved to another node of the stage
    sender_changes: int = 0  # own_sender_changes of the downstream outflow
    holder_changes: int = 0  # own_holder_changes of the downstream outflow


@dataclass(frozen=True, slots=True)
class FlowTransfer:
    """A transfer from this node to another one: of an outflow (redirected), or of its downstream end (swapped)."""

    to: ProcessId
    flow: FlowId  # the outflow of the other node
    own: FlowId  # the outflow of this node, at the time of the transfer
    downstream: FlowEnd  # transferred
    upstream: FlowEnd | None = None  # transferred with a redirected outflow; None: swapped, the upstream end stays


@dataclass(slots=True)
class Outflows:
    """The outflows of a node, its transfers to other nodes, and the costs of unpaired outflows as announced."""

    view: View
    table: dict[FlowId, Outflow] = field(init=False, default_factory=dict)
    redirected: dict[FlowId, FlowTransfer] = field(init=False, default_factory=dict)  # by own outflow
    swapped: dict[FlowId, FlowTransfer] = field(init=False, default_factory=dict)  # by outflow of the next stage
    # An unpaired outflow that is removed when this node takes over another one; it is paired with none meanwhile.
    spare: FlowId | None = field(init=False, default=None)
    announced: dict[ProcessId, float] = field(init=False, default_factory=dict)  # lowest cost, by data node
    made: int = field(init=False, default=0)  # names issued so far

    def name(self) -> FlowId:
        """Return the name of a new outflow."""
        self.made += 1
        return FlowId(self.view.me, self.made)

    @property
    def loose(self) -> list[Outflow]:
        """Return the unpaired inflows of a relay: those without a downstream end."""
        return [unit for unit in self.table.values() if unit.downstream is None]

    @property
    def unpaired(self) -> list[Outflow]:
        """Return the unpaired outflows: those without an upstream end."""
        return [unit for unit in self.table.values() if unit.upstream is None]

    @property
    def closed(self) -> list[tuple[Outflow, FlowEnd, FlowEnd]]:
        """Return the outflows that have both ends, with their upstream and downstream ends."""
        return [
            (unit, unit.upstream, unit.downstream)
            for unit in self.table.values()
            if unit.upstream is not None and unit.downstream is not None
        ]

    def cheapest(self, source: ProcessId) -> Outflow | None:
        """Return the cheapest unpaired outflow to this data node, if any."""
        free = [unit for unit in self.unpaired if unit.source == source and unit.flow != self.spare]
        return min(free, key=lambda unit: (unit.cost, unit.flow), default=None)

    def costliest(self) -> Outflow | None:
        """Return the unpaired outflow that costs most, if any."""
        return max(self.unpaired, key=lambda unit: (unit.cost, unit.flow), default=None)

    def give_up(self) -> list[FlowSend]:
        """Remove the spare outflow, if it is still there; the next stage is notified."""
        unit = None if self.spare is None else self.table.get(self.spare)
        self.spare = None
        if unit is None or unit.upstream is not None or unit.downstream is None:
            return []
        del self.table[unit.flow]
        dropped = FlowDropped(unit.downstream.flow, self.view.me, unit.flow)
        return [FlowSend(unit.downstream.node, dropped, "a redirected flow takes its room")]

    def broadcast(self) -> list[FlowSend]:
        """Send the costs of the cheapest unpaired outflows to the stage before, where they have changed."""
        sources = dict.fromkeys([*self.announced, *(unit.source for unit in self.table.values())])
        sends: list[FlowSend] = []
        for source in sources:
            unit = self.cheapest(source)
            cost = INFINITE if unit is None else unit.cost
            if self.announced.get(source, INFINITE) != cost:
                self.announced[source] = cost
                sends += [
                    FlowSend(to, CheapestOutflow(source, cost), "the cheapest unpaired changed")
                    for to in self.view.before
                ]
        return sends

    def greet(self, view: View) -> list[FlowSend]:
        """Replace the view: nodes have entered; send the announced costs to new nodes of the stage before."""
        fresh = [node for node in view.before if node not in self.view.before]
        self.view = view
        costs = [CheapestOutflow(source, cost) for source, cost in self.announced.items() if cost < INFINITE]
        return [FlowSend(node, message, "it is new") for node in fresh for message in costs]

    def lose(self, process: ProcessId) -> list[FlowSend]:
        """Unpair the flows from and to a dead node, and notify the ends of outflows that were transferred to it.

        The dead node may not have notified these ends of the transfer.
        """
        sends: list[FlowSend] = []
        me, reason = self.view.me, "transferred to a dead node"
        for transfer in (*self.redirected.values(), *self.swapped.values()):
            if transfer.to == process:
                down, up = transfer.downstream, transfer.upstream
                sends.append(FlowSend(down.node, FlowDropped(down.flow, me, transfer.own), reason))
                if up is not None:
                    sends.append(FlowSend(up.node, FlowDenied(up.flow, transfer.flow, me), reason))
        self.redirected = {flow: transfer for flow, transfer in self.redirected.items() if transfer.to != process}
        self.swapped = {
            downstream_flow: transfer for downstream_flow, transfer in self.swapped.items() if transfer.to != process
        }
        for unit in list(self.table.values()):
            if unit.upstream is not None and unit.upstream.node == process:
                unit.upstream = None
            if unit.downstream is not None and unit.downstream.node == process:
                self._unpair_downstream(unit)
            elif unit.upstream is None and unit.downstream is None:
                del self.table[unit.flow]
        return sends

    def denied(self, message: FlowDenied) -> list[FlowSend]:
        """Remove the downstream end of an outflow that the next stage has denied."""
        unit = self.table.get(message.flow)
        if unit is not None and unit.downstream is not None and unit.downstream.flow == message.downstream_flow:
            if unit.downstream.node == message.downstream:
                self._unpair_downstream(unit)
            return []
        transfer = self._transfer_of(message.flow, message.downstream_flow)
        return [] if transfer is None else self._forward(transfer.to, replace(message, flow=transfer.flow))

    def dropped(self, message: FlowDropped) -> list[FlowSend]:
        """Unpair an outflow that the stage before no longer sends."""
        unit = self.table.get(message.flow)
        if unit is not None:
            if unit.upstream == FlowEnd(message.upstream, message.upstream_flow):
                unit.upstream = None
                if unit.downstream is None and self.view.stage >= 0:  # those of a data node end there
                    del self.table[unit.flow]
            return []
        transfer = self.redirected.get(message.flow)
        return [] if transfer is None else self._forward(transfer.to, message)

    def requested(self, sender: ProcessId, message: RequestFlow) -> list[FlowSend]:
        """Approve a request if there is an unpaired outflow at that cost, else reject it with the present cost."""
        unit = self.cheapest(message.source)
        if unit is None or unit.cost != message.cost:
            cost = INFINITE if unit is None else unit.cost
            return [FlowSend(sender, FlowRejected(message.source, cost, message.flow), "no such outflow")]
        unit.upstream, unit.own_sender_changes = FlowEnd(sender, message.flow), unit.own_sender_changes + 1
        approval = FlowApproved(
            message.source, unit.cost, message.flow, unit.flow, unit.own_sender_changes, unit.own_holder_changes
        )
        return [FlowSend(sender, approval, "unpaired at that cost"), *self.broadcast()]

    def upstream_changed(self, message: UpstreamChanged) -> list[FlowSend]:
        """Replace the upstream end of an outflow; forward the message where the outflow was redirected."""
        unit = self.table.get(message.flow)
        if unit is not None:
            if message.sender_changes <= unit.own_sender_changes:
                return []
            unit.upstream = FlowEnd(message.upstream, message.upstream_flow)
            unit.own_sender_changes = message.sender_changes
            if not message.forwards:
                return []
            # The sender does not know yet that the outflow has moved: news of it may have followed a stale transfer.
            moved = DownstreamChanged(message.upstream_flow, self.view.me, unit.flow, unit.own_holder_changes)
            return [FlowSend(message.upstream, moved, "it sends to a former holder")]
        transfer = self.redirected.get(message.flow)
        return [] if transfer is None else self._forward(transfer.to, message)

    def downstream_changed(self, message: DownstreamChanged) -> list[FlowSend]:
        """Replace the downstream node of an outflow; forward the message where the outflow was transferred."""
        unit = self.table.get(message.flow)
        if unit is not None and unit.downstream is not None and unit.downstream.flow == message.downstream_flow:
            if message.holder_changes > unit.holder_changes:
                unit.downstream, unit.holder_changes = (
                    FlowEnd(message.downstream, message.downstream_flow),
                    message.holder_changes,
                )
            return []
        transfer = self._transfer_of(message.flow, message.downstream_flow)
        return [] if transfer is None else self._forward(transfer.to, replace(message, flow=transfer.flow))

    def inflow(self) -> dict[Link, int]:
        """Return the units of inflow, by (node before, data node)."""
        return Counter((unit.upstream.node, unit.source) for unit in self.table.values() if unit.upstream is not None)

    def outflow(self) -> dict[Link, int]:
        """Return the units of outflow, by (node after, data node)."""
        return Counter(
            (unit.downstream.node, unit.source) for unit in self.table.values() if unit.downstream is not None
        )

    def _forward(
        self, to: ProcessId, message: UpstreamChanged | DownstreamChanged | FlowDenied | FlowDropped
    ) -> list[FlowSend]:
        """Forward a message to the node that has the flow now.

        The hops are limited: two nodes that have transferred a flow to each other would forward the message forever.
        """
        if message.forwards > len(self.view.beside):
            return []
        return [FlowSend(to, replace(message, forwards=message.forwards + 1), "another node has the flow")]

    def _transfer_of(self, flow: FlowId, downstream_flow: FlowId) -> FlowTransfer | None:
        """Return the transfer after which another node sends to `downstream_flow`, if any."""
        return self.swapped.get(downstream_flow) or self.redirected.get(flow)

    def _unpair_downstream(self, unit: Outflow) -> None:
        """Remove the downstream end of an outflow; without an upstream end, remove the outflow."""
        unit.downstream, unit.cost = None, INFINITE
        if unit.upstream is None:
            del self.table[unit.flow]
