"""A relay in GWTF's negotiation: Request Flow, Request Change, Request Redirect (GWTF, V-C).

Where the paper leaves a choice open, it is made in GWTF's favour; docs/decisions/flow.md lists these choices.
"""

from __future__ import annotations

from random import Random
from typing import Any

from swarmflow.core.protocol.messages.gwtf import (
    ChangeAccepted,
    CheapestOutflow,
    DownstreamChanged,
    FlowApproved,
    FlowDenied,
    FlowDropped,
    FlowId,
    FlowQuery,
    FlowRejected,
    FlowReport,
    RedirectAccepted,
    RequestChange,
    RequestFlow,
    RequestRedirect,
    SwapRefused,
    UpstreamChanged,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.gwtf_flows import FlowEnd, Outflow, Outflows
from swarmflow.core.routing.flow.gwtf_swaps import GwtfSwaps, Objective
from swarmflow.core.routing.flow.node_types import INFINITE, FlowSend, Link, View

LOOSE_ROUNDS = 4.0  # after which an unpaired inflow is denied, if no node offers an outflow for it


class GwtfRelay:
    """The GWTF machine of a peer: it requests flows, and swaps them with other relays once none is left to request."""

    def __init__(self, view: View, random: Random, objective: Objective = "minmax", round_s: float = 1.0) -> None:
        self.view = view
        self.flows = Outflows(view)
        self.swaps = GwtfSwaps(self.flows, random, objective, round_s)
        self.round_s = round_s
        # Both by (node of the next stage, data node).
        self._offered_cost: dict[tuple[ProcessId, ProcessId], float] = {}  # of its cheapest unpaired outflow
        self._requested: dict[tuple[ProcessId, ProcessId], FlowId] = {}  # the own outflow of the open request
        self._unpaired_since: dict[FlowId, float] = {}  # since when no node offers an outflow for an unpaired inflow

    def tick(self, now: float) -> list[FlowSend]:
        """Request flows and deny inflows without an offer; if no request is open, seek a swap that saves cost."""
        sends = self._request_flows() + self._deny_unpaired(now)
        if sends or self._requested:
            return sends
        return self._consider_swaps(now) if self.swaps.waits(now) else self.swaps.query(now)

    def handle(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message and return the answers."""
        match message:
            case CheapestOutflow():
                self._offered_cost[sender, message.source] = message.cost
            case RequestFlow():
                return self.flows.requested(sender, message)
            case FlowApproved():
                return self._approved(sender, message)
            case FlowRejected():
                self._requested.pop((sender, message.source), None)
                self._offered_cost[sender, message.source] = message.cost
            case FlowQuery():
                return [FlowSend(sender, self.swaps.report(), "asked")]
            case FlowReport():
                self.swaps.answered(sender, message)
                return self._consider_swaps(now)
            case RequestChange():
                return self.swaps.change_requested(sender, message)
            case ChangeAccepted():
                return self.swaps.change_accepted(sender, message)
            case RequestRedirect():
                return self.swaps.redirect_requested(sender, message)
            case RedirectAccepted():
                return self._take_over(sender, message)
            case SwapRefused():
                return self.swaps.refused(sender, message)
            case UpstreamChanged():
                return self.flows.upstream_changed(message)
            case DownstreamChanged():
                return self.flows.downstream_changed(message)
            case FlowDenied():
                return self.flows.denied(message)
            case FlowDropped():
                return self.flows.dropped(message) + self.flows.broadcast()
        return []

    @property
    def inflow(self) -> dict[Link, int]:
        """Return the units that come in, by link."""
        return self.flows.inflow()

    @property
    def outflow(self) -> dict[Link, int]:
        """Return the units that go out, by link."""
        return self.flows.outflow()

    @property
    def unfinished(self) -> bool:
        """Return False: no decision takes long."""
        return False

    @property
    def held(self) -> int:
        """Return the units of capacity in use: outflows, paired or not (GWTF, V-C), and requested ones."""
        new = sum(flow not in self.flows.table for flow in self._requested.values())
        return len(self.flows.table) + new + self.swaps.redirects

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """Unpair the flows from and to a dead process."""
        self.view = self.flows.view = self.view.without(process)
        self.swaps.gone(process)
        for key in [key for key in self._offered_cost if key[0] == process]:
            self._offered_cost.pop(key)
            self._requested.pop(key, None)
        return self.flows.lose(process) + self.flows.broadcast()

    def met(self, view: View) -> list[FlowSend]:
        """Replace the view: nodes have entered."""
        self.view = view
        return self.flows.greet(view)

    def _request_flows(self) -> list[FlowSend]:
        """Request the cheapest unpaired outflows of the next stage, one at a time from each node for each data node.

        An outflow goes to an unpaired inflow of its data node first, and else takes a free unit of capacity.
        """
        room = self.view.capacity - self.held
        unpaired = [unit for unit in self.flows.loose if unit.flow not in self._requested.values()]
        offers = [(self.view.cost[key[0]] + cost, key) for key, cost in self._offered_cost.items() if cost < INFINITE]
        sends: list[FlowSend] = []
        for _, key in sorted(offer for offer in offers if offer[1] not in self._requested):
            unit = next((unit for unit in unpaired if unit.source == key[1]), None)
            if unit is not None:
                unpaired.remove(unit)
            elif room > 0:
                room -= 1
            else:
                continue
            self._requested[key] = self.flows.name() if unit is None else unit.flow
            request = RequestFlow(key[1], self._offered_cost[key], self._requested[key])
            sends.append(FlowSend(key[0], request, "the cheapest unpaired outflow"))
        return sends

    def _approved(self, sender: ProcessId, message: FlowApproved) -> list[FlowSend]:
        """Pair the own outflow with the one that the next stage has approved."""
        self._requested.pop((sender, message.source), None)
        unit = self.flows.table.setdefault(message.flow, Outflow(message.flow, message.source, INFINITE))
        unit.downstream, unit.cost = FlowEnd(sender, message.downstream_flow), message.cost + self.view.cost[sender]
        unit.sender_changes, unit.holder_changes = message.sender_changes, message.holder_changes
        return self.flows.broadcast()

    def _deny_unpaired(self, now: float) -> list[FlowSend]:
        """Deny unpaired inflows for which no node has offered an outflow for LOOSE_ROUNDS rounds (GWTF, V-D)."""
        reachable = {source for (_, source), cost in self._offered_cost.items() if cost < INFINITE}
        waiting = [u for u in self.flows.loose if u.source not in reachable and u.flow not in self._requested.values()]
        self._unpaired_since = {unit.flow: self._unpaired_since.get(unit.flow, now) for unit in waiting}
        sends: list[FlowSend] = []
        for unit in waiting:
            if now - self._unpaired_since[unit.flow] >= LOOSE_ROUNDS * self.round_s:
                assert unit.upstream is not None, "an outflow without any end is removed"
                del self.flows.table[unit.flow]
                denial = FlowDenied(unit.upstream.flow, unit.flow, self.view.me)
                sends.append(FlowSend(unit.upstream.node, denial, "no node offers an outflow"))
        return sends

    def _take_over(self, sender: ProcessId, message: RedirectAccepted) -> list[FlowSend]:
        """Take over a redirected outflow. One that was not asked for, or finds no room, is unpaired at both ends."""
        sends = self.swaps.redirect_accepted(sender, message)
        if sends is not None and self.held < self.view.capacity:
            return sends + self.swaps.take_over(message)
        denial = FlowDenied(message.upstream_flow, message.flow, sender)
        dropped = FlowDropped(message.downstream_flow, sender, message.flow)
        reason = "redirected too late" if sends is not None else "not asked for"
        return [
            *(sends or []),
            FlowSend(message.upstream, denial, reason),
            FlowSend(message.downstream, dropped, reason),
        ]

    def _consider_swaps(self, now: float) -> list[FlowSend]:
        return self.swaps.consider(now, room=self.held < self.view.capacity)
