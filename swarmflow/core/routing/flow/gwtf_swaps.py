"""Swaps of flows between two relays of a stage in GWTF's negotiation: Request Change and Request Redirect (V-C)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from random import Random
from typing import Literal

from swarmflow.core.protocol.messages.gwtf import (
    ChangeAccepted,
    DownstreamChanged,
    FlowId,
    FlowQuery,
    FlowReport,
    RedirectAccepted,
    ReportedFlow,
    RequestChange,
    RequestRedirect,
    SwapRefused,
    UpstreamChanged,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.annealing import Annealing
from swarmflow.core.routing.flow.gwtf_flows import FlowEnd, FlowTransfer, Outflow, Outflows
from swarmflow.core.routing.flow.node_types import INFINITE, FlowSend
from swarmflow.core.transitions import Transitions

Objective = Literal["minmax", "sum"]  # what a change reduces: the larger of the two relays' sending costs, or their sum
CONSIDERED_MAX = 1 << 15  # pairs of own and other flows at a time, else of a random part of the others: 20 ms
ANSWER_TIMEOUT_ROUNDS = 4.0  # after which a query is repeated, or a request is given up


class GwtfSwapState(StrEnum):
    """How far a relay of GWTF's negotiation is with a change or a redirect that it asks for, one at a time."""

    IDLE = "idle"  # it asks for none
    QUERYING = "querying"  # it has asked the other relays of its stage for their flows
    REQUESTING = "requesting"  # it has asked one of them for a swap


GWTF_SWAP_STATES = Transitions(
    "flow swap",
    GwtfSwapState.IDLE,
    {
        GwtfSwapState.IDLE: {GwtfSwapState.QUERYING: "there is no flow to request"},
        GwtfSwapState.QUERYING: {
            GwtfSwapState.QUERYING: "a relay has not answered in time",
            GwtfSwapState.REQUESTING: "all have answered, and a swap saves cost or annealing takes it",
            GwtfSwapState.IDLE: "all have answered, and there is no swap to ask for",
        },
        GwtfSwapState.REQUESTING: {
            GwtfSwapState.IDLE: "the swap is accepted or refused, or the other relay is dead or asks first",
            GwtfSwapState.QUERYING: "the relay has not answered in time",
        },
    },
)


@dataclass(frozen=True, slots=True)
class SwapCandidate:
    """A change or redirect that this node could request."""

    gain: float  # the cost that it saves
    to: ProcessId  # the other relay
    message: RequestChange | RequestRedirect


# A swap that this node could request: the cost that it saves, the other relay, its flow, and the own one of a change.
_Swap = tuple[float, ProcessId, ReportedFlow, Outflow | None]


class GwtfSwaps:
    """The swaps of one relay: its own requests, one at a time, and its answers to the requests of other relays."""

    def __init__(self, flows: Outflows, random: Random, objective: Objective, round_s: float) -> None:
        self.flows = flows
        self.random = random
        self.annealing = Annealing(random)
        self.objective = objective
        self.round_s = round_s
        self.state = GwtfSwapState.IDLE
        self._sent_at = 0.0  # when the query or the request was sent
        self._answers: dict[ProcessId, FlowReport] = {}  # to the query, by relay
        self._pending: SwapCandidate | None = None  # None unless the state is REQUESTING
        # Requests whose answer has not come in time. It still may, so the outflow takes part in no other swap.
        self._overdue: dict[FlowId, SwapCandidate] = {}

    @property
    def redirects(self) -> bool:
        """Return whether the pending request is a redirect to this node, which would take a unit of free capacity."""
        redirect = self._pending is not None and isinstance(self._pending.message, RequestRedirect)
        return redirect and self.flows.spare not in self.flows.table

    def waits(self, now: float) -> bool:
        """Return whether an answer to the query or the request is awaited and not overdue."""
        return self.state is not GwtfSwapState.IDLE and now - self._sent_at < ANSWER_TIMEOUT_ROUNDS * self.round_s

    def query(self, now: float) -> list[FlowSend]:
        """Ask the other relays of the stage for their flows."""
        if self._pending is not None:
            self._overdue[_requested_flow(self._pending.message)] = self._pending
        self._answers, self._sent_at = {}, now
        self._move(GwtfSwapState.QUERYING, None)
        queries = [FlowSend(node, FlowQuery(), "no flow to request") for node in self.flows.view.beside]
        return queries + self.flows.broadcast()

    def answered(self, sender: ProcessId, message: FlowReport) -> None:
        """Store the answer to a query."""
        if self.state is GwtfSwapState.QUERYING:
            self._answers[sender] = message

    def refused(self, sender: ProcessId, message: SwapRefused) -> list[FlowSend]:
        """End the request: the other relay has refused it."""
        self._end_request(message.flow, sender)
        return self.flows.broadcast()

    def gone(self, process: ProcessId) -> None:
        """Drop the answer of a dead relay, and the requests to it."""
        self._answers.pop(process, None)
        for request in (*self._overdue.values(), self._pending):
            if request is not None:
                self._end_request(_requested_flow(request.message), process)

    def consider(self, now: float, room: bool) -> list[FlowSend]:
        """Request the best swap once all have answered; if none saves cost, one that annealing accepts, if any.

        room: whether this node has a free unit of capacity, which a redirect takes. Where it has none, an unpaired
        outflow gives way: it carries nothing yet.
        """
        if self.state is not GwtfSwapState.QUERYING or len(self._answers) < len(self.flows.view.beside):
            return []
        for late in self._overdue.values():
            self._answers.pop(late.to, None)  # it owes an answer to the last request
        spare = None if room else self.flows.costliest()
        own = [closed for closed in self.flows.closed if not self._busy(closed[0].flow)]
        others = [(node, flow) for node, answer in self._answers.items() for flow in answer.swappable]
        if len(others) > (most := CONSIDERED_MAX // max(1, len(own))):
            others = self.random.sample(others, max(1, most))
        swaps = [*self._changes(own, others), *(self._redirects(others) if room or spare else ())]
        chosen = max(swaps, key=itemgetter(0), default=None)
        if chosen is not None and chosen[0] <= 0:
            self.random.shuffle(swaps)
            chosen = next((swap for swap in swaps if self.annealing.wants(swap[0])), None)
        if chosen is None:
            self._move(GwtfSwapState.IDLE, None)
            return []
        self._sent_at, best = now, self._candidate(*chosen)
        self._move(GwtfSwapState.REQUESTING, best)
        request = FlowSend(best.to, best.message, f"saves {best.gain:g}")
        if spare is None or isinstance(best.message, RequestChange):
            return [request]
        self.flows.spare = spare.flow
        return [request, *self.flows.broadcast()]

    def report(self) -> FlowReport:
        """Return the flows that have both ends, as the answer to a query, without those of the own requests."""
        cost = self.flows.view.cost
        swappable = tuple(
            ReportedFlow(
                unit.flow,
                unit.source,
                upstream.node,
                downstream.node,
                cost.get(upstream.node, INFINITE),
                cost[downstream.node],
            )
            for unit, upstream, downstream in self.flows.closed
            if not self._busy(unit.flow)
        )
        return FlowReport(swappable, tuple((node, cost[node]) for node in self.flows.view.after))

    def change_requested(self, sender: ProcessId, message: RequestChange) -> list[FlowSend]:
        """Accept a change if the outflow has the same receiver, and the change saves cost or annealing wants it."""
        unit = self.flows.table.get(message.responder_flow)
        refused = [FlowSend(sender, SwapRefused(message.requester_flow), "not any more")]
        if unit is None or unit.downstream is None or unit.downstream.node != message.responder_downstream:
            return refused
        if self._busy(unit.flow) and not self._yields(sender, message):
            return refused
        cost, former = self.flows.view.cost, unit.downstream
        old, new = cost[former.node], cost.get(message.requester_downstream, INFINITE)
        gain = self._gain((message.costs[0], old), (message.costs[1], new))
        if not (self.annealing.bears(gain) if message.anneal else gain > 0):
            return refused
        accepted = ChangeAccepted(
            message.requester_flow,
            message.responder_flow,
            former.node,
            former.flow,
            unit.sender_changes,
            unit.holder_changes,
        )
        self.flows.swapped[former.flow] = FlowTransfer(sender, message.requester_flow, unit.flow, former)
        self.flows.swapped.pop(message.requester_downstream_flow, None)
        unit.downstream, unit.cost = (
            FlowEnd(message.requester_downstream, message.requester_downstream_flow),
            unit.cost - old + new,
        )
        unit.sender_changes, unit.holder_changes = message.sender_changes + 1, message.holder_changes
        self.annealing.changed()
        return [FlowSend(sender, accepted, f"saves {gain:g}"), *self._announce(unit, unit.downstream, "swapped")]

    def change_accepted(self, sender: ProcessId, message: ChangeAccepted) -> list[FlowSend]:
        """Give the own outflow the downstream end of the other relay's, as requested of it."""
        pending = self._end_request(message.requester_flow, sender)
        unit = self.flows.table.get(message.requester_flow)
        if not isinstance(pending, RequestChange) or pending.responder_downstream != message.downstream:
            return []
        if unit is None or unit.downstream is None:
            return []
        former, sends = unit.downstream, []
        if former.node != pending.requester_downstream:
            # The downstream end has moved to another node since the request was sent.
            newer = DownstreamChanged(message.responder_flow, former.node, former.flow, unit.holder_changes)
            sends.append(FlowSend(sender, newer, "redirected meanwhile"))
        self.flows.swapped[former.flow] = FlowTransfer(sender, message.responder_flow, unit.flow, former)
        self.flows.swapped.pop(message.downstream_flow, None)
        unit.cost += self.flows.view.cost[message.downstream] - self.flows.view.cost[former.node]
        unit.downstream = FlowEnd(message.downstream, message.downstream_flow)
        unit.sender_changes, unit.holder_changes = message.sender_changes + 1, message.holder_changes
        self.annealing.changed()
        return sends + self._announce(unit, unit.downstream, "swapped")

    def redirect_requested(self, sender: ProcessId, message: RequestRedirect) -> list[FlowSend]:
        """Accept a redirect if the flow has the same ends, and the redirect saves cost or annealing wants it."""
        unit = self.flows.table.get(message.flow)
        refused = [FlowSend(sender, SwapRefused(message.flow), "not any more")]
        if unit is None or unit.upstream is None or unit.downstream is None or self._busy(unit.flow):
            return refused
        upstream, downstream, cost = unit.upstream, unit.downstream, self.flows.view.cost
        if (upstream.node, downstream.node) != (message.upstream, message.downstream):
            return refused
        gain = cost.get(upstream.node, INFINITE) + cost[downstream.node] - message.cost
        if not (self.annealing.bears(gain) if message.anneal else gain > 0):
            return refused
        del self.flows.table[unit.flow]
        self.flows.swapped.pop(downstream.flow, None)
        self.flows.redirected[unit.flow] = FlowTransfer(sender, unit.flow, unit.flow, downstream, upstream)
        self.annealing.changed()
        accepted = RedirectAccepted(
            unit.flow,
            unit.source,
            upstream.node,
            downstream.node,
            upstream.flow,
            downstream.flow,
            unit.cost - cost[downstream.node],
            unit.sender_changes,
            unit.holder_changes,
            unit.own_sender_changes,
            unit.own_holder_changes,
        )
        return [FlowSend(sender, accepted, f"saves {gain:g}")]

    def redirect_accepted(self, sender: ProcessId, message: RedirectAccepted) -> list[FlowSend] | None:
        """End the request for a redirect; the spare outflow gives way to the flow. None: this was not asked for."""
        request = self._request_to(sender, message.flow)
        asked = None if request is None else request.message
        ends = message.upstream, message.downstream
        if not isinstance(asked, RequestRedirect) or (asked.upstream, asked.downstream) != ends:
            return None
        dropped = self.flows.give_up() if request is self._pending else []
        self._end_request(message.flow, sender)
        return dropped

    def take_over(self, message: RedirectAccepted) -> list[FlowSend]:
        """Take over an outflow as requested, and notify both of its ends."""
        self.flows.redirected.pop(message.flow, None)
        self.flows.swapped.pop(message.downstream_flow, None)
        unit = self.flows.table[message.flow] = Outflow(
            message.flow,
            message.source,
            message.cost + self.flows.view.cost[message.downstream],
            FlowEnd(message.downstream, message.downstream_flow),
            FlowEnd(message.upstream, message.upstream_flow),
            message.own_sender_changes,
            message.own_holder_changes + 1,
            message.sender_changes + 1,
            message.holder_changes,
        )
        self.annealing.changed()
        me = self.flows.view.me
        return [
            FlowSend(
                message.upstream,
                DownstreamChanged(message.upstream_flow, me, message.flow, unit.own_holder_changes),
                "redirected",
            ),
            FlowSend(
                message.downstream,
                UpstreamChanged(message.downstream_flow, me, message.flow, unit.sender_changes),
                "redirected",
            ),
        ]

    def _announce(self, unit: Outflow, downstream: FlowEnd, reason: str) -> list[FlowSend]:
        """Notify the new receiver of an outflow, and the stage before if the cheapest costs have changed."""
        moved = UpstreamChanged(downstream.flow, self.flows.view.me, unit.flow, unit.sender_changes)
        return [FlowSend(downstream.node, moved, reason), *self.flows.broadcast()]

    def _gain(self, now: tuple[float, float], then: tuple[float, float]) -> float:
        """Return how much a change reduces the objective. now, then: the sending costs of both relays."""
        return max(now) - max(then) if self.objective == "minmax" else sum(now) - sum(then)

    def _changes(
        self, own: list[tuple[Outflow, FlowEnd, FlowEnd]], others: list[tuple[ProcessId, ReportedFlow]]
    ) -> list[_Swap]:
        """Return the possible changes: pairs of own and other outflows with one data node and different receivers."""
        found: list[_Swap] = []
        cost = self.flows.view.cost
        links = {node: dict(answer.link_costs) for node, answer in self._answers.items()}
        for node, theirs in others:
            mine_s, costs = cost.get(theirs.downstream, INFINITE), links[node]
            for unit, _, downstream in own:
                if unit.source == theirs.source and downstream.node != theirs.downstream:
                    now = cost[downstream.node], theirs.downstream_cost
                    gain = self._gain(now, (mine_s, costs.get(downstream.node, INFINITE)))
                    found.append((gain, node, theirs, unit))
        return found

    def _redirects(self, others: list[tuple[ProcessId, ReportedFlow]]) -> list[_Swap]:
        """Return the possible redirects. Either objective compares the sums of both links (the paper's example)."""
        found: list[_Swap] = []
        for node, theirs in others:
            if theirs.upstream is not None and theirs.flow not in self.flows.table:  # else it has no sender, or is here
                here = self._through_here(theirs.upstream, theirs.downstream)
                gain = theirs.upstream_cost + theirs.downstream_cost - here
                found.append((gain, node, theirs, None))
        return found

    def _through_here(self, upstream: ProcessId, downstream: ProcessId) -> float:
        """Return the cost of both links of a flow through this node."""
        cost = self.flows.view.cost
        return cost.get(upstream, INFINITE) + cost.get(downstream, INFINITE)

    def _candidate(self, gain: float, node: ProcessId, theirs: ReportedFlow, unit: Outflow | None) -> SwapCandidate:
        """Return a swap with its request."""
        if unit is None or unit.downstream is None:
            assert theirs.upstream is not None, "nothing comes in that could be redirected"
            here = self._through_here(theirs.upstream, theirs.downstream)
            redirect = RequestRedirect(theirs.flow, theirs.upstream, theirs.downstream, here, gain <= 0)
            return SwapCandidate(gain, node, redirect)
        former, cost = unit.downstream, self.flows.view.cost
        request = RequestChange(
            unit.flow,
            former.node,
            former.flow,
            unit.sender_changes,
            unit.holder_changes,
            theirs.flow,
            theirs.downstream,
            (cost[former.node], cost.get(theirs.downstream, INFINITE)),
            gain <= 0,
        )
        return SwapCandidate(gain, node, request)

    def _yields(self, sender: ProcessId, message: RequestChange) -> bool:
        """Drop the own request if both relays request the same change and the sender's id is smaller. True: dropped."""
        own = None if self._pending is None else self._pending.message
        if not isinstance(own, RequestChange) or (own.requester_flow, own.responder_flow) != (
            message.responder_flow,
            message.requester_flow,
        ):
            return False
        return sender < self.flows.view.me and self._end_request(own.requester_flow, sender) is not None

    def _busy(self, flow: FlowId) -> bool:
        """Return whether a request is open that would change this own outflow."""
        return flow in self._overdue or (self._pending is not None and _requested_flow(self._pending.message) == flow)

    def _request_to(self, relay: ProcessId, flow: FlowId) -> SwapCandidate | None:
        """Return the request to a relay about this outflow, in time or overdue. None: there is none."""
        for request in (self._overdue.get(flow), self._pending):
            if request is not None and request.to == relay and _requested_flow(request.message) == flow:
                return request
        return None

    def _end_request(self, flow: FlowId, relay: ProcessId) -> RequestChange | RequestRedirect | None:
        """End the request to a relay about this outflow, in time or overdue, and return it. None: there is none."""
        request = self._request_to(relay, flow)
        if request is None:
            return None
        if request is self._pending:
            self._move(GwtfSwapState.IDLE, None)
        else:
            del self._overdue[flow]
        return request.message

    def _move(self, to: GwtfSwapState, pending: SwapCandidate | None) -> None:
        assert (pending is not None) == (to is GwtfSwapState.REQUESTING), f"{pending} is pending at {to}"
        self.state, self._pending = GWTF_SWAP_STATES.move(self.state, to), pending
        if pending is None:
            self.flows.spare = None


def _requested_flow(request: RequestChange | RequestRedirect) -> FlowId:
    """Return the outflow that a request would change: the requester's, or the one to redirect."""
    return request.requester_flow if isinstance(request, RequestChange) else request.flow
