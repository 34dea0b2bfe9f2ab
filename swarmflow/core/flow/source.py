"""A data node: sends its flows out into the first stage and takes them back from the last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swarmflow.core.flow.handover import Handovers
from swarmflow.core.flow.labels import WIDE, Labels
from swarmflow.core.flow.messages import (
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
from swarmflow.core.flow.node import NodeBase
from swarmflow.core.flow.node_types import INFINITE, FlowSend, View
from swarmflow.core.flow.relay import AVOID, LABEL_REFRESH, LABEL_REFRESH_MAX
from swarmflow.core.types import ProcessId

PACE = 2  # a data node asks for this share of what it wants at a time, so that labels can follow
PACE_OF_MANY = 8  # of several, so that the cheapest one does not take all before the labels say so
RETRY = 12.0  # times a message's: after units came back


class FlowSource(NodeBase):
    """Of several data nodes the one with the cheapest way goes first. worth: as of a relay, for handovers."""

    def __init__(self, view: View, round_s: float = 1.0, worth: float = 0.0) -> None:
        super().__init__(view, round_s)
        self.labels = Labels(view.cost)
        self.handovers = Handovers(view, round_s, worth)
        self.others: dict[ProcessId, Price] = {}
        self._announced: Price | None = None
        self._begin_at = 0.0
        self._refresh = LABEL_REFRESH
        self._pause_until = 0.0
        self._avoid: dict[ProcessId, float] = {}

    def received(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message that the base class does not."""
        match message:
            case Label():
                self.labels.received(sender, message)
            case Price():
                self.others[sender] = message
            case ReserveUnits():
                return self._returned(sender, message, now)
            case UnitsReserved():
                self._granted(sender, message, now)
            case Drop():
                self.dropped(sender, message, now)
                self._pause_until = now + RETRY * self.round_s
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
        """What concerns exchanges and handovers."""
        match message:
            case LockRequest():
                return self._asked(message, now)
            case Locked():
                return self.handovers.offered(sender, message)
            case LockDenied():
                self.handovers.busy(sender, message.exchange)
            case Inquire():
                return self.handovers.inquired(sender, message.exchange)
            case ExchangeTurn():
                known = [node for node in self.labels.known if node not in self.dead]
                at = (self.handovers.number + self.reservations.made + len(known)) % max(1, len(known))
                taken = [FlowSend(sender, ExchangeTurnTaken(), "taken")]
                return [*taken, FlowSend(known[at], message, "the ring goes on")] if known else taken
            case RetraceFlows():
                self.handovers.retrace(now)
            case TraceFlow():
                self.handovers.traced(message)
            case OwnFlows():
                self.handovers.reported(sender, message, now)
            case ApplyExchange():
                if self.apply(message, now):
                    self.handovers.changed(now)
                return self._after_standing(now)
        return []

    def _asked(self, message: LockRequest, now: float) -> list[FlowSend]:
        """Stand still on both sides, for flows to be handed over."""
        exchange = message.exchange
        if exchange in self.lock.finished:
            return []
        if self.reservations.under_way or not self.lock.take(exchange, (False, True), now, self.round_s):
            return [FlowSend(exchange.solver, LockDenied(exchange), "reserves or stands still")]
        offer = Locked(exchange, self.view.capacity, self.books.counts(False), self.books.counts(True), ())
        return [FlowSend(exchange.solver, offer, "stands still")]

    def tick(self, now: float) -> list[FlowSend]:
        """Some time has passed."""
        sends: list[FlowSend] = []
        if self._begin_at <= now:
            self._begin_at = now + self._refresh * self.round_s  # labels and prices may be lost
            self._refresh = min(LABEL_REFRESH_MAX, 2 * self._refresh)
            sends += [FlowSend(node, self._end(), "the end of all ways") for node in self.view.before]
            if self._announced is not None:
                sends += [FlowSend(node, self._announced, "it may have been lost") for node in self.view.beside]
        sends += self.ask_again(now)
        sends += self._compare(now)
        sends += self._set_out(now)
        outflow = {node: n for (node, _), n in sorted(self.books.outflow.items())}
        self.handovers.path_cost = self.labels.costs().get(self.view.me, 0.0)
        for send in self.handovers.tick(outflow, now):
            sends.append(
                self.reliable.wrap(send, now) if isinstance(send.message, TraceFlow | OwnFlows | RetraceFlows) else send
            )
        return sends + self.watch(now)

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """A process that this node knows is dead."""
        self.forget(process, now)
        self.labels.forget(process)
        self.others.pop(process, None)
        self.handovers.gone(process)
        self.handovers.changed(now)
        self.view = self.handovers.view = self.view.without(process)
        return self._after_standing(now)

    def met(self, view: View, now: float) -> None:
        """Others are there now, too. view: with them."""
        self.join(view)
        self.handovers.view = view
        self.labels.cost = view.cost
        self._announced, self._begin_at, self._refresh = None, now, LABEL_REFRESH
        self.handovers.changed(now)

    def resize(self, capacity: int, now: float) -> list[FlowSend]:
        """It wants another number of flows from now on. Those that are too many stay."""
        self.join(replace(self.view, capacity=max(capacity, self.held)))
        self.handovers.view = self.view
        return []

    def costs_changed(self, costs: Mapping[ProcessId, float], now: float, *, calm: bool = False) -> None:
        """Links cost something else now; costs: of all of them. calm: that goes on all the time."""
        self.view = self.handovers.view = replace(self.view, cost=costs)
        self.labels.cost = costs
        if not calm:
            self.handovers.changed(now)

    @property
    def unfinished(self) -> bool:
        """Never."""
        return False

    @property
    def held(self) -> int:
        """Flows that set out."""
        return sum(self.books.outflow.values())

    @property
    def _wanted(self) -> int:
        """Flows that are still to set out: no more than the narrowest stage can hold of all data nodes together."""
        mine = self.held + self.reservations.units(self.view.me)
        others = sum(price.flows for price in self.others.values())
        return min(self.view.capacity - mine, self.labels.width - mine - others)

    def _end(self) -> Label:
        """Of this node as the end of all ways."""
        return Label(self.view.capacity, ((self.view.me, 0.0, 0),), WIDE, WIDE)

    def _cheapest(self) -> float:
        if self._wanted <= 0:
            return INFINITE
        paths = self.labels.paths(self.view.me)
        return min((path.cost for path in paths), default=INFINITE)

    def _compare(self, now: float) -> list[FlowSend]:
        """Tell the other data nodes what the next flow would cost, and how many there are.

        And again before long: two that have each missed the other's last price may wait for each other for ever.
        """
        price = Price(self._cheapest(), self.held + self.reservations.units(self.view.me))
        if self._announced == price or (self._announced is None and price.cost == INFINITE):
            return []
        self._announced, self._refresh = price, LABEL_REFRESH
        self._begin_at = min(self._begin_at, now + LABEL_REFRESH * self.round_s)
        return [FlowSend(node, price, "the next flow would cost this") for node in self.view.beside]

    def _set_out(self, now: float) -> list[FlowSend]:
        """Reserve some of what is wanted, if no other data node has a cheaper way."""
        cost = self._cheapest()
        if cost == INFINITE or now < self._pause_until or True in self.lock.sides:
            return []
        least = min((price.cost for price in self.others.values()), default=INFINITE)
        if cost > least or (self.view.beside and self.reservations.under_way):
            return []
        left = min(self._wanted, -(-self.view.capacity // (PACE_OF_MANY if self.view.beside else PACE)))
        sends = []
        for path in self.labels.paths(self.view.me):
            if left <= 0:
                break
            if self._avoid.get(path.node, 0.0) > now:
                continue
            count = min(left, path.units)
            self.labels.take(path.node, count)
            sends.append(self.reservations.ask(path.node, self.view.me, count, now, f"costs {path.cost:g} in all"))
            left -= count
        return sends

    def _returned(self, sender: ProcessId, message: ReserveUnits, now: float) -> list[FlowSend]:
        """Own microbatches come back: there is always room for them."""
        label = self._end()
        if (given := self.reservations.given(sender, message.number)) is not None:
            return [FlowSend(sender, given, "asked again")]
        if False in self.lock.sides:
            return [FlowSend(sender, UnitsReserved(message.source, 0, message.number, label, True), "stands still")]
        self.books.add(False, sender, message.source, message.count, now)
        answer = UnitsReserved(message.source, message.count, message.number, label)
        self.reservations.give(sender, answer)
        return [FlowSend(sender, answer, "its own")]

    def _granted(self, sender: ProcessId, message: UnitsReserved, now: float) -> None:
        self.labels.received(sender, message.label)
        if message.busy:
            self._avoid[sender] = now + AVOID * self.round_s
        if self.answered(sender, message, now):
            self.handovers.changed(now)

    def _after_standing(self, now: float) -> list[FlowSend]:
        sends = []
        for sender, message in self.take_waiting():
            sends += self.handle(sender, message, now)
        return sends
