"""A relay in GWTF's negotiation: Request Flow, Request Change, Request Redirect (GWTF, V-C).

What the paper leaves open is decided in GWTF's favour; docs/decisions/flow.md lists it.
"""

from __future__ import annotations

from random import Random
from typing import Any

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.gwtf_flows import FlowEnd, Outflow, Outflows
from swarmflow.core.routing.flow.gwtf_messages import (
    ChangeAccepted,
    CostIs,
    Deny,
    Dropped,
    FlowApproved,
    FlowId,
    FlowRejected,
    Flows,
    NewAfter,
    NewBefore,
    Query,
    RedirectAccepted,
    RequestChange,
    RequestFlow,
    RequestRedirect,
    SwapRefused,
)
from swarmflow.core.routing.flow.gwtf_swaps import GwtfSwaps, Objective
from swarmflow.core.routing.flow.node_types import INFINITE, FlowSend, Link, View

LOOSE = 4.0  # rounds before an unpaired inflow is denied, where no node offers an outflow for it


class GwtfRelay:
    """The GWTF machine of a peer: it requests flows, and swaps of flows where there is none to request."""

    def __init__(self, view: View, random: Random, objective: Objective = "minmax", round_s: float = 1.0) -> None:
        self.view = view
        self.flows = Outflows(view)
        self.swaps = GwtfSwaps(self.flows, random, objective, round_s)
        self.round_s = round_s
        # by (node after, data node): the cost of its cheapest unpaired outflow, and the own flow that is requested
        self._known: dict[tuple[ProcessId, ProcessId], float] = {}
        self._asked: dict[tuple[ProcessId, ProcessId], FlowId] = {}
        self._loose_since: dict[FlowId, float] = {}  # unpaired inflows that no node offers an outflow for

    def tick(self, now: float) -> list[FlowSend]:
        """Request flows while there are any; else a change or redirect that reduces the objective."""
        sends = self._request_flows() + self._deny(now)
        if sends or self._asked:
            return sends
        return self._consider_swaps(now) if self.swaps.waits(now) else self.swaps.query(now)

    def handle(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message and return the answers."""
        match message:
            case CostIs():
                self._known[sender, message.source] = message.cost
            case RequestFlow():
                return self.flows.requested(sender, message)
            case FlowApproved():
                return self._approved(sender, message)
            case FlowRejected():
                self._asked.pop((sender, message.source), None)
                self._known[sender, message.source] = message.cost
            case Query():
                return [FlowSend(sender, self.swaps.shown(), "asked")]
            case Flows():
                self.swaps.answered(sender, message)
                return self._consider_swaps(now)
            case RequestChange():
                return self.swaps.change_requested(sender, message)
            case ChangeAccepted():
                return self.swaps.change_accepted(sender, message)
            case RequestRedirect():
                return self.swaps.redirect_requested(sender, message)
            case RedirectAccepted():
                return self.swaps.redirect_accepted(message)
            case SwapRefused():
                self.swaps.refused()
            case NewBefore():
                return self.flows.new_before(message)
            case NewAfter():
                return self.flows.new_after(message)
            case Deny():
                return self.flows.denied(message)
            case Dropped():
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
        """Return the units of capacity in use: outflows, paired or not (GWTF, V-C), and those that are requested."""
        asked = sum(flow not in self.flows.table for flow in self._asked.values())
        return len(self.flows.table) + asked + self.swaps.redirects

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """Unpair the flows from and to a dead process."""
        self.view = self.flows.view = self.view.without(process)
        self.swaps.gone(process)
        for key in [key for key in self._known if key[0] == process]:
            self._known.pop(key)
            self._asked.pop(key, None)
        return self.flows.lose(process) + self.flows.broadcast()

    def met(self, view: View) -> list[FlowSend]:
        """Take a view with nodes that have entered."""
        self.view = view
        return self.flows.greet(view)

    def _request_flows(self) -> list[FlowSend]:
        """Request the cheapest unpaired outflows of the next stage, one from each node and data node at a time.

        Unpaired inflows to the same data node come first; then as many more as there is room for.
        """
        room = self.view.capacity - self.held
        loose = [unit for unit in self.flows.loose if unit.flow not in self._asked.values()]
        offers = [(self.view.cost[key[0]] + cost, key) for key, cost in self._known.items() if cost < INFINITE]
        sends: list[FlowSend] = []
        for _, key in sorted(offer for offer in offers if offer[1] not in self._asked):
            unit = next((unit for unit in loose if unit.source == key[1]), None)
            if unit is not None:
                loose.remove(unit)
            elif room > 0:
                room -= 1
            else:
                continue
            self._asked[key] = self.flows.name() if unit is None else unit.flow
            request = RequestFlow(key[1], self._known[key], self._asked[key])
            sends.append(FlowSend(key[0], request, "the cheapest unpaired outflow"))
        return sends

    def _approved(self, sender: ProcessId, message: FlowApproved) -> list[FlowSend]:
        self._asked.pop((sender, message.source), None)
        unit = self.flows.table.setdefault(message.flow, Outflow(message.flow, message.source, INFINITE))
        unit.downstream, unit.cost = FlowEnd(sender, message.below), message.cost + self.view.cost[sender]
        unit.turn, unit.moves = message.turn, message.moves
        return self.flows.broadcast()

    def _deny(self, now: float) -> list[FlowSend]:
        """Deny unpaired inflows for which no node has offered an outflow for a while (GWTF, V-D)."""
        offered = {source for (_, source), cost in self._known.items() if cost < INFINITE}
        waiting = [u for u in self.flows.loose if u.source not in offered and u.flow not in self._asked.values()]
        self._loose_since = {unit.flow: self._loose_since.get(unit.flow, now) for unit in waiting}
        sends: list[FlowSend] = []
        for unit in waiting:
            if now - self._loose_since[unit.flow] >= LOOSE * self.round_s:
                assert unit.upstream is not None, "an outflow without any end is removed"
                del self.flows.table[unit.flow]
                denial = Deny(unit.upstream.flow, unit.flow, self.view.me)
                sends.append(FlowSend(unit.upstream.node, denial, "no node offers an outflow"))
        return sends

    def _consider_swaps(self, now: float) -> list[FlowSend]:
        return self.swaps.consider(now, room=self.held < self.view.capacity)
