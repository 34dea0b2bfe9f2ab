"""Handovers: data nodes trace their flows, and the first data node gives paths to others for which they cost less."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.protocol.messages.negotiation import (
    ApplyExchange,
    Exchange,
    Locked,
    LockRequest,
    OwnFlows,
    RetraceFlows,
    TraceFlow,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import INFINITE, FlowSend, View
from swarmflow.core.routing.flow.owners import Handover, RelayPath, changes, cheapest_owners

ANSWER_TIMEOUT_ROUNDS = 12.0  # before handovers are decided without the nodes that have not answered
REPEAT_ROUNDS = 3.0  # between two requests to a node that has not answered
GATHER_ROUNDS = 3.0  # after the last report, for others to follow
TRACE_INTERVAL_ROUNDS = 20.0  # between two traces
TRACE_INTERVAL_CALM_ROUNDS = 240.0  # the same, where a handover has to save a share of its path's cost
TRACES_MAX = 5  # in a row because a path had changed
QUIET_ROUNDS = 8.0  # after a change of the own links, before they are traced


@dataclass(slots=True)
class OpenHandover:
    """Handovers for which all nodes on the paths are asked to lock their links."""

    exchange: Exchange
    since: float  # when the nodes were first asked
    handovers: list[Handover]
    asked: dict[ProcessId, None]  # the nodes on the paths, and their data nodes before and after
    repeat_at: float  # when requests without an answer are repeated
    offers: dict[ProcessId, Locked] = field(init=False, default_factory=dict)  # the links of locked nodes
    denied: dict[ProcessId, None] = field(init=False, default_factory=dict)  # nodes that denied the lock


class Handovers:
    """The handovers of one data node. Each traces and reports its own flows; the first data node, by id, decides."""

    def __init__(self, view: View, round_s: float, worth: float = 0.0, numbered: int = 0) -> None:
        self.view = view
        self.round_s = round_s
        self.worth = worth  # the share of a path's cost that a handover has to save
        self.path_cost = 0.0  # the present cost of a path
        self.number = numbered  # of the latest trace
        self.open: OpenHandover | None = None
        self._tries = 0  # traces in a row because a path had changed
        self._trace_at: float | None = None  # when the next trace begins; None: no trace is scheduled
        self._traced_at = -INFINITE  # when the latest trace began
        self._returned: list[RelayPath] | None = None  # paths of the latest trace; None once they are reported
        self._expected = 0  # number of paths that the latest trace finds if no message is lost
        self._until = 0.0  # when the latest trace is reported even if paths are missing
        self._reports: dict[ProcessId, OwnFlows] = {}  # the latest one of each data node
        self._decide_at = INFINITE  # when handovers are decided; infinite: no new report has arrived
        self._exchanges = numbered  # number of the latest own exchange
        self._outcomes: dict[Exchange, dict[ProcessId, ApplyExchange]] = {}  # of the last exchange

    @property
    def decider(self) -> ProcessId:
        """Return the data node that decides."""
        return min(self.view.me, *self.view.beside) if self.view.beside else self.view.me

    def changed(self, now: float) -> None:
        """Schedule a trace of the own links, which have changed."""
        if self._trace_at is None:
            again = TRACE_INTERVAL_CALM_ROUNDS if self.worth else TRACE_INTERVAL_ROUNDS
            self._trace_at = max(now + QUIET_ROUNDS * self.round_s, self._traced_at + again * self.round_s)

    def retrace(self, now: float) -> None:
        """Trace the own links at once."""
        self._trace_at = now

    def traced(self, message: TraceFlow) -> None:
        """Store the path of a trace that has returned; a report has no more paths than there are own units."""
        if message.number == self.number and self._returned is not None and len(self._returned) < self._expected:
            self._returned.append(message.path)

    def reported(self, sender: ProcessId, message: OwnFlows, now: float) -> None:
        """Store the traced flows of a data node."""
        self._reports[sender] = message
        self._decide_at = now + GATHER_ROUNDS * self.round_s

    def tick(self, outflow: dict[ProcessId, int], now: float) -> list[FlowSend]:
        """Do what is due. outflow: own units, by relay of the first stage."""
        if not self.view.beside:
            return []
        sends = self._trace(outflow, now)
        sends += self._report(now)
        sends += self._decide(now)
        return sends + self._finish(now)

    def node_locked(self, sender: ProcessId, message: Locked) -> list[FlowSend]:
        """Store the links of a node on a path that has locked them."""
        if self.open is None or message.exchange != self.open.exchange:
            return self.inquired(sender, message.exchange)
        if sender in self.open.asked:
            self.open.offers[sender] = message
        return []

    def denied(self, sender: ProcessId, exchange: Exchange) -> None:
        """Record a node that cannot lock its links: its paths stay as they are."""
        if self.open is not None and exchange == self.open.exchange:
            self.open.denied[sender] = None

    def inquired(self, sender: ProcessId, exchange: Exchange) -> list[FlowSend]:
        """Answer a node that asks for the outcome of an exchange."""
        if self.open is not None and exchange == self.open.exchange:
            return []
        outcome = self._outcomes.get(exchange, {}).get(sender, ApplyExchange(exchange))
        return [FlowSend(sender, outcome, "asked again")]

    def gone(self, process: ProcessId) -> None:
        """Remove a process that is dead."""
        self._reports.pop(process, None)
        if self.open is not None:
            self.open.asked.pop(process, None)
            self.open.offers.pop(process, None)

    def _trace(self, outflow: dict[ProcessId, int], now: float) -> list[FlowSend]:
        """Send a trace along each own unit, when it is time."""
        if self._trace_at is None or now < self._trace_at:
            return []
        self._trace_at = None
        self._traced_at = now
        self.number += 1
        self._returned = []
        self._expected = sum(outflow.values())
        self._until = now + 3.0 * (self.view.stages + 2) * self.round_s
        trace = TraceFlow(self.view.me, self.number, ())
        return [FlowSend(node, trace, "to find its path") for node, n in outflow.items() for _ in range(n)]

    def _report(self, now: float) -> list[FlowSend]:
        """Report the paths to the first data node, once all traces have returned or were waited for long enough."""
        paths = self._returned
        if paths is None or (len(paths) < self._expected and now < self._until):
            return []
        self._returned = None
        own = OwnFlows(self.view.capacity, tuple(paths), tuple(sorted(self.view.cost.items())))
        return [FlowSend(self.decider, own, "to find the cheapest owners")]

    def _decide(self, now: float) -> list[FlowSend]:
        """Find the cheapest owner of each reported path, and ask the nodes on the paths that change to lock."""
        reports = self._reports
        if not reports or self.open is not None or now < self._decide_at:
            return []
        self._decide_at = INFINITE
        handovers = cheapest_owners(
            {source: reports[source] for source in sorted(reports)}, self.worth * self.path_cost
        )
        if not handovers:
            return []
        self._exchanges += 1
        exchange = Exchange(self.view.me, self._exchanges)
        asked = dict.fromkeys(node for h in handovers for node in (h.giver, h.taker, *h.path))
        self.open = OpenHandover(exchange, now, handovers, asked, now + REPEAT_ROUNDS * self.round_s)
        return [FlowSend(node, LockRequest(exchange, False, False, True), "to hand flows over") for node in asked]

    def _finish(self, now: float) -> list[FlowSend]:
        """Send the outcome, once all nodes have answered or were waited for long enough."""
        current = self.open
        if current is None:
            return []
        silent = [node for node in current.asked if node not in current.offers and node not in current.denied]
        if silent and now - current.since < ANSWER_TIMEOUT_ROUNDS * self.round_s:
            if now < current.repeat_at:
                return []
            current.repeat_at = now + REPEAT_ROUNDS * self.round_s
            return [
                FlowSend(node, LockRequest(current.exchange, False, False, True), "no answer yet") for node in silent
            ]
        self.open = None
        link_changes = changes(current.handovers, current.offers)
        retraces: list[FlowSend] = []
        complete = all(set(handover.path) <= link_changes.keys() for handover in current.handovers)
        if not complete and self._tries < TRACES_MAX:
            self._tries += 1
            retraces = [FlowSend(node, RetraceFlows(), "a path has changed") for node in self.view.beside]
            self.retrace(now)
        elif link_changes:
            self._tries = 0
        outcome = {}
        for node in current.offers:
            change = link_changes.get(node)
            if change is None:
                outcome[node] = ApplyExchange(current.exchange)
                continue
            outcome[node] = ApplyExchange(
                current.exchange,
                tuple((other, source, n) for (other, source), n in change.inflow.items()),
                tuple((other, source, n) for (other, source), n in change.outflow.items()),
                True,
            )
        self._outcomes = {current.exchange: outcome}
        return [*retraces, *(FlowSend(node, message, "handed over") for node, message in outcome.items())]
