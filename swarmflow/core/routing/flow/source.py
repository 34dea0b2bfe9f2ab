"""The flow machine of a trainer, which is a data node: its flows enter the first stage and return from the last one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swarmflow.core.protocol.messages.negotiation import (
    ApplyExchange,
    Drop,
    ExchangeTurn,
    ExchangeTurnTaken,
    Inquire,
    Label,
    LockDenied,
    Locked,
    LockRequest,
    OwnFlows,
    Price,
    ReleaseUnits,
    ReserveUnits,
    RetraceFlows,
    TraceFlow,
    UnitsReserved,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.handover import Handovers
from swarmflow.core.routing.flow.labels import WIDE, Labels
from swarmflow.core.routing.flow.node import NodeBase
from swarmflow.core.routing.flow.node_types import INFINITE, FlowSend, View
from swarmflow.core.routing.flow.relay import AVOID_ROUNDS, LABEL_REPEAT_MAX_ROUNDS, LABEL_REPEAT_ROUNDS

REQUEST_PARTS = 2  # in which a data node requests its flows, so that labels are updated in between
REQUEST_PARTS_OF_MANY = 8  # of each of several, so that the cheapest one does not take all units before labels change
PAUSE_ROUNDS = 12.0  # without new reservations after units were dropped


class FlowSource(NodeBase):
    """Reserves the flows of a trainer. Of several data nodes, the one with the cheapest path reserves first.

    worth: the share of a path's cost that a handover has to save.
    """

    def __init__(self, view: View, round_s: float = 1.0, worth: float = 0.0, numbered: int = 0) -> None:
        super().__init__(view, round_s, numbered)
        self._numbered = numbered
        self.labels = Labels(view.cost)
        self.handovers = Handovers(view, round_s, worth, numbered)
        self.others: dict[ProcessId, Price] = {}  # the latest price of each other data node
        self._announced: Price | None = None  # the latest price that was sent
        self._announce_at = 0.0  # when the label and the price are repeated
        self._refresh = LABEL_REPEAT_ROUNDS  # between two repetitions
        self._pause_until = 0.0  # until when no flow is reserved

    def received(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message that the base class does not handle."""
        match message:
            case Label():
                self.labels.received(sender, message)
            case Price():
                self.others[sender] = message
            case ReserveUnits():
                return self._reserve_returning(sender, message, now)
            case UnitsReserved():
                self._units_reserved(sender, message, now)
            case Drop():
                self.dropped(sender, message, now)
                self._pause_until = now + PAUSE_ROUNDS * self.round_s
            case ReleaseUnits():
                self.released(sender, message, now)
            case (
                LockRequest()
                | Locked()
                | LockDenied()
                | Inquire()
                | TraceFlow()
                | RetraceFlows()
                | ExchangeTurn()
                | OwnFlows()
                | ApplyExchange()
            ):
                return self._exchange(sender, message, now)
        return []

    def _exchange(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message of an exchange or a handover."""
        match message:
            case LockRequest():
                return self._lock_requested(message, now)
            case Locked():
                return self.handovers.node_locked(sender, message)
            case LockDenied():
                self.handovers.denied(sender, message.exchange)
            case Inquire():
                return self.handovers.inquired(sender, message.exchange)
            case ExchangeTurn():
                first = list(self.labels.known)  # of the first stage
                chosen = self._numbers_used % max(1, len(first))
                taken = [FlowSend(sender, ExchangeTurnTaken(), "taken")]
                return [*taken, FlowSend(first[chosen], message, "the turn goes around the ring")] if first else taken
            case RetraceFlows():
                self.handovers.retrace(now)
            case TraceFlow():
                self.handovers.traced(message)
            case OwnFlows():
                self.handovers.reported(sender, message, now)
            case ApplyExchange():
                if self.apply(message, now):
                    self.handovers.changed(now)
                return self.handle_deferred(now)
        return []

    def _lock_requested(self, message: LockRequest, now: float) -> list[FlowSend]:
        """Lock both sides and report the links, so that paths can be handed over."""
        exchange = message.exchange
        if self.lock.finished(exchange):
            return []
        if self.reservations.pending or not self.lock.acquire(exchange, (False, True), now):
            return [FlowSend(exchange.solver, LockDenied(exchange), "a reservation is pending, or locked")]
        offer = Locked(exchange, self.view.capacity, self.books.counts(False), self.books.counts(True), ())
        return [FlowSend(exchange.solver, offer, "locked")]

    def tick(self, now: float) -> list[FlowSend]:
        """Do what is due."""
        sends: list[FlowSend] = []
        if self._announce_at <= now:
            self._announce_at = now + self._refresh * self.round_s
            self._refresh = min(LABEL_REPEAT_MAX_ROUNDS, 2 * self._refresh)
            sends += [FlowSend(node, self._sink_label(), "the sink of its flows") for node in self.view.before]
            if self._announced is not None:
                sends += [FlowSend(node, self._announced, "it may have been lost") for node in self.view.beside]
        sends += self.repeat(now)
        sends += self._announce_price(now)
        sends += self._reserve(now)
        outflow = {node: n for (node, _), n in sorted(self.books.outflow.items())}
        self.handovers.path_cost = self.labels.costs().get(self.view.me, 0.0)
        for send in self.handovers.tick(outflow, now):
            sends.append(
                self.reliable.wrap(send, now) if isinstance(send.message, TraceFlow | OwnFlows | RetraceFlows) else send
            )
        return sends + self.watch(now)

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """Handle the death of a process that this node knows."""
        self.forget(process, now)
        self.labels.forget(process)
        self.others.pop(process, None)
        self.handovers.gone(process)
        self.handovers.changed(now)
        self.view = self.handovers.view = self.view.without(process)
        return self.handle_deferred(now)

    def met(self, view: View, now: float) -> None:
        """Replace the view: nodes have entered."""
        self.update_view(view)
        self.handovers.view = view
        self.labels.cost = view.cost
        self._announced, self._announce_at, self._refresh = None, now, LABEL_REPEAT_ROUNDS
        self.handovers.changed(now)

    def resize(self, capacity: int, now: float) -> list[FlowSend]:
        """Change the number of flows that this node wants. Flows beyond it stay."""
        self.update_view(replace(self.view, capacity=max(capacity, self.held)))
        self.handovers.view = self.view
        return []

    def costs_changed(self, costs: Mapping[ProcessId, float], now: float, *, calm: bool = False) -> None:
        """Replace the costs of all links. calm: measured times have drifted as usual, so no trace is needed."""
        self.view = self.handovers.view = replace(self.view, cost=costs)
        self.labels.cost = costs
        if not calm:
            self.handovers.changed(now)

    @property
    def unfinished(self) -> bool:
        """Return False: no decision takes long."""
        return False

    @property
    def held(self) -> int:
        """Return the number of own flows."""
        return sum(self.books.outflow.values())

    @property
    def _numbers_used(self) -> int:
        """Return the number of own traces and reservations so far."""
        return self.handovers.number + self.reservations.last_number - 2 * self._numbered

    @property
    def _wanted(self) -> int:
        """Return the number of flows to reserve: at most what the narrowest stage holds besides all present flows."""
        own = self.held + self.reservations.pending_units(self.view.me)
        others = sum(price.flows for price in self.others.values())
        return min(self.view.capacity - own, self.labels.width - own - others)

    def _sink_label(self) -> Label:
        """Return the label of this node as the sink of its flows."""
        return Label(self.view.capacity, ((self.view.me, 0.0, 0),), WIDE, WIDE)

    def _cheapest(self) -> float:
        """Return the cost of the next flow; infinite: none is wanted or possible."""
        if self._wanted <= 0:
            return INFINITE
        paths = self.labels.paths(self.view.me)
        return min((path.cost for path in paths), default=INFINITE)

    def _announce_price(self, now: float) -> list[FlowSend]:
        """Send the cost of the next flow and the number of own flows to the other data nodes, where they have changed.

        A price is repeated soon: if two data nodes missed each other's last price, each might wait for the other
        forever.
        """
        price = Price(self._cheapest(), self.held + self.reservations.pending_units(self.view.me))
        if self._announced == price or (self._announced is None and price.cost == INFINITE):
            return []
        self._announced, self._refresh = price, LABEL_REPEAT_ROUNDS
        self._announce_at = min(self._announce_at, now + LABEL_REPEAT_ROUNDS * self.round_s)
        return [FlowSend(node, price, "it has changed") for node in self.view.beside]

    def _reserve(self, now: float) -> list[FlowSend]:
        """Reserve some of the wanted flows, unless another data node has a cheaper path."""
        cost = self._cheapest()
        if cost == INFINITE or now < self._pause_until or self.lock.holder(outward=True) is not None:
            return []
        least = min((price.cost for price in self.others.values()), default=INFINITE)
        if cost > least or (self.view.beside and self.reservations.pending):
            return []
        parts = REQUEST_PARTS_OF_MANY if self.view.beside else REQUEST_PARTS
        left = min(self._wanted, -(-self.view.capacity // parts))
        sends = []
        for path in self.labels.paths(self.view.me):
            if left <= 0:
                break
            if self.avoid.get(path.node, 0.0) > now:
                continue
            count = min(left, path.units)
            self.labels.take(path.node, count)
            sends.append(self.reservations.request(path.node, self.view.me, count, now, f"costs {path.cost:g} in all"))
            left -= count
        return sends

    def _reserve_returning(self, sender: ProcessId, message: ReserveUnits, now: float) -> list[FlowSend]:
        """Grant units of own flows that return from the last stage: they need no room, but a sum that others accept."""
        label = self._sink_label()
        if (earlier := self.reservations.answer_given(sender, message.number)) is not None:
            return [FlowSend(sender, earlier, "asked again")]
        if self.lock.holder(outward=False) is not None:
            return [FlowSend(sender, UnitsReserved(message.source, 0, message.number, label, True), "locked")]
        count = min(message.count, WIDE - self.books.inflow.get((sender, message.source), 0))
        self.books.add(False, sender, message.source, count, now)
        answer = UnitsReserved(message.source, count, message.number, label)
        self.reservations.keep_answer(sender, answer)
        return [FlowSend(sender, answer, "its own")]

    def _units_reserved(self, sender: ProcessId, message: UnitsReserved, now: float) -> None:
        self.labels.received(sender, message.label)
        if message.busy:
            self.avoid[sender] = now + AVOID_ROUNDS * self.round_s
        if self.answered(sender, message, now):
            self.handovers.changed(now)
