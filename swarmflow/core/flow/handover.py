"""The part of a data node that traces its flows, and, of the first data node, the part that hands flows over."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.flow.messages import ApplyExchange, Exchange, Locked, LockRequest, OwnFlows, RetraceFlows, TraceFlow
from swarmflow.core.flow.node_types import INFINITE, FlowSend, View
from swarmflow.core.flow.owners import Handover, Path, changes, cheapest_owners
from swarmflow.core.types import ProcessId

ANSWERS_WAITED = 12.0  # times a message's
REPEATED_EVERY = 3.0  # to those who have not answered
REPORTS_GATHERED = 3.0  # after one report others may follow
AGAIN = 20.0
AGAIN_CALM = 240.0  # where nothing is to be done for a small gain
TRIES = 5
QUIET = 8.0  # after the last change of the own links they are traced


@dataclass(slots=True)
class OpenHandover:
    """Handovers for which all nodes on the paths are asked to lock their links."""

    exchange: Exchange
    since: float
    handovers: list[Handover]
    asked: dict[ProcessId, None]
    repeat_at: float
    offers: dict[ProcessId, Locked] = field(default_factory=dict)
    busy: dict[ProcessId, None] = field(default_factory=dict)


class Handovers:
    """Every data node has one; only that of the first of them, by id, decides.

    worth: the share of a whole path's cost that a handover has to save. path_cost: the cost of a path now.
    """

    def __init__(self, view: View, round_s: float, worth: float = 0.0) -> None:
        self.worth = worth
        self.path_cost = 0.0
        self.view = view
        self.round_s = round_s
        self.number = 0
        self.tries = 0
        self.trace_at: float | None = None
        self.open: OpenHandover | None = None
        self._tracing: dict[int, list[Path]] = {}
        self._expected = 0
        self._traced_at = -INFINITE
        self._until = 0.0
        self._reports: dict[ProcessId, OwnFlows] = {}
        self._decide_at = INFINITE
        self._exchanges = 0
        self._done: dict[Exchange, dict[ProcessId, ApplyExchange]] = {}

    @property
    def leader(self) -> ProcessId:
        """Return the first data node by id."""
        return min(self.view.me, *self.view.beside) if self.view.beside else self.view.me

    def changed(self, now: float) -> None:
        """Own links have changed: trace them when they have come to rest."""
        if self.trace_at is None:
            again = AGAIN_CALM if self.worth else AGAIN
            self.trace_at = max(now + QUIET * self.round_s, self._traced_at + again * self.round_s)

    def retrace(self, now: float) -> None:
        """Trace the own links at once."""
        self.trace_at = now

    def traced(self, message: TraceFlow) -> None:
        """Store the path of a trace that has returned."""
        if message.number == self.number and message.number in self._tracing:
            self._tracing[message.number].append(message.path)

    def reported(self, sender: ProcessId, message: OwnFlows, now: float) -> None:
        """A data node has traced its flows."""
        self._reports[sender] = message
        self._decide_at = now + REPORTS_GATHERED * self.round_s

    def tick(self, outflow: dict[ProcessId, int], now: float) -> list[FlowSend]:
        """outflow: own units, by first relay."""
        if not self.view.beside:
            return []
        sends = self._trace(outflow, now)
        sends += self._report(now)
        sends += self._decide(now)
        return sends + self._finish(now)

    def offered(self, sender: ProcessId, message: Locked) -> list[FlowSend]:
        """Store the links of a node on a path that has locked them."""
        if self.open is None or message.exchange != self.open.exchange:
            return self.inquired(sender, message.exchange)
        if sender in self.open.asked:
            self.open.offers[sender] = message
        return []

    def busy(self, sender: ProcessId, exchange: Exchange) -> None:
        """Note a node that cannot lock its links: its paths stay as they are."""
        if self.open is not None and exchange == self.open.exchange:
            self.open.busy[sender] = None

    def inquired(self, sender: ProcessId, exchange: Exchange) -> list[FlowSend]:
        """Answer a node that asks for the outcome of an exchange."""
        if self.open is not None and exchange == self.open.exchange:
            return []
        outcome = self._done.get(exchange, {}).get(sender, ApplyExchange(exchange))
        return [FlowSend(sender, outcome, "asked again")]

    def gone(self, process: ProcessId) -> None:
        """Stop waiting for a process that is dead."""
        self._reports.pop(process, None)
        if self.open is not None:
            self.open.asked.pop(process, None)
            self.open.offers.pop(process, None)

    def _trace(self, outflow: dict[ProcessId, int], now: float) -> list[FlowSend]:
        if self.trace_at is None or now < self.trace_at:
            return []
        self.trace_at = None
        self._traced_at = now
        self.number += 1
        self._tracing = {self.number: []}
        self._expected = sum(outflow.values())
        self._until = now + 3.0 * (self.view.stages + 2) * self.round_s
        trace = TraceFlow(self.view.me, self.number, ())
        return [FlowSend(node, trace, "which way do they go?") for node, n in outflow.items() for _ in range(n)]

    def _report(self, now: float) -> list[FlowSend]:
        paths = self._tracing.get(self.number)
        if paths is None or (len(paths) < self._expected and now < self._until):
            return []
        self._tracing.clear()
        mine = OwnFlows(self.view.capacity, tuple(paths), tuple(sorted(self.view.cost.items())))
        return [FlowSend(self.leader, mine, "whose should they be?")]

    def _decide(self, now: float) -> list[FlowSend]:
        """Once all have reported: who should have which path, and everybody on those paths is asked to stand still."""
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
        self.open = OpenHandover(exchange, now, handovers, asked, now + REPEATED_EVERY * self.round_s)
        return [FlowSend(node, LockRequest(exchange, False, False, True), "to hand flows over") for node in asked]

    def _finish(self, now: float) -> list[FlowSend]:
        current = self.open
        if current is None:
            return []
        silent = [node for node in current.asked if node not in current.offers and node not in current.busy]
        if silent and now - current.since < ANSWERS_WAITED * self.round_s:
            if now < current.repeat_at:
                return []
            current.repeat_at = now + REPEATED_EVERY * self.round_s
            return [
                FlowSend(node, LockRequest(current.exchange, False, False, True), "no answer yet") for node in silent
            ]
        self.open = None
        found = changes(current.handovers, current.offers)
        again: list[FlowSend] = []
        if not all(set(handover.path) <= found.keys() for handover in current.handovers) and self.tries < TRIES:
            self.tries += 1
            again = [FlowSend(node, RetraceFlows(), "a path was not there any more") for node in self.view.beside]
            self.retrace(now)
        elif found:
            self.tries = 0
        outcome = {}
        for node in current.offers:
            change = found.get(node)
            if change is None:
                outcome[node] = ApplyExchange(current.exchange)
                continue
            outcome[node] = ApplyExchange(
                current.exchange,
                tuple((other, source, n) for (other, source), n in change.inflow.items()),
                tuple((other, source, n) for (other, source), n in change.outflow.items()),
                True,
            )
        self._done = {current.exchange: outcome}
        return [*again, *(FlowSend(node, message, "handed over") for node, message in outcome.items())]
