"""The base class of relays and data nodes: their links, audits of these, and locks for the exchanges of other nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from swarmflow.core.protocol.messages.negotiation import (
    Ack,
    ApplyExchange,
    Audit,
    Drop,
    Inquire,
    LockDenied,
    LockRequest,
    ReleaseUnits,
    Reliable,
    SideLocked,
    SideLockRequest,
    UnitsReserved,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.books import Books
from swarmflow.core.routing.flow.exchange_lock import ExchangeLock
from swarmflow.core.routing.flow.node_types import FlowSend, Link, View
from swarmflow.core.routing.flow.reliable import ReliableDelivery
from swarmflow.core.routing.flow.reservations import Reservations
from swarmflow.latest import Latest

SETTLE_ROUNDS = 14.0  # after which a changed link is audited
FORMER_MAX = 512  # former neighbours that outcomes may still name
RECEIVER_SETTLE_FACTOR = 1.7  # times SETTLE_ROUNDS for the receiving end: it audits only if the sending end has not


class NodeBase(ABC):
    """The state and the messages that relays and data nodes have in common.

    numbered: the last number that an earlier machine of this process may have used; others remember its messages.
    """

    def __init__(self, view: View, round_s: float = 1.0, numbered: int = 0) -> None:
        self.view = view
        self.round_s = round_s  # seconds: the usual time of a message between neighbours
        self.books = Books(view.me, view.capacity)
        self.lock = ExchangeLock(round_s)
        # Neighbours that are dead, serve another stage, or have no link any more: outcomes may still name them.
        self.former = Latest[ProcessId, None](FORMER_MAX)
        self.avoid: dict[ProcessId, float] = {}  # node that was locked -> when it may be asked again
        self.reservations = Reservations(round_s, numbered)
        self.reliable = ReliableDelivery(round_s, numbered)

    @property
    def inflow(self) -> dict[Link, int]:
        """Return the units of inflow, by link."""
        return self.books.inflow

    @property
    def outflow(self) -> dict[Link, int]:
        """Return the units of outflow, by link."""
        return self.books.outflow

    def handle(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message and return the answers; ignore a late one of a former neighbour."""
        return [] if sender in self.former else self.accept(sender, message, now)

    def accept(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message of a process that is alive: a former neighbour may solve exchanges from its new stage."""
        if self.defer(sender, message):
            return []
        match message:
            case Reliable():
                ack = FlowSend(sender, Ack(message.number), "received")
                duplicate = not self.reliable.first(sender, message)
                return [ack] if duplicate else [ack, *self.accept(sender, message.message, now)]
            case Ack():
                self.reliable.acknowledged(message)
                return []
            case Audit():
                return self.audited(sender, message, now)
            case SideLockRequest():
                return self.lock_side(sender, message, now)
        return self.received(sender, message, now)

    @abstractmethod
    def received(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message that only a relay, or only a data node, handles."""

    def lock_side(self, sender: ProcessId, message: SideLockRequest, now: float) -> list[FlowSend]:
        """Lock one side, as a neighbour of an exchange's window, unless a reservation is pending there."""
        exchange, outward = message.exchange, message.outward
        if self.lock.finished(exchange):
            return []
        if self.lock.holder(outward) == exchange:
            offer = SideLocked(exchange, outward, self.books.counts(outward))
            return [FlowSend(exchange.solver, offer, "asked again")] if sender == exchange.solver else []
        reserving = outward and bool(self.reservations.pending)
        if reserving or not self.lock.acquire(exchange, (outward,), now):
            denial = LockDenied(exchange, outward)
            return [FlowSend(exchange.solver, denial, "a reservation is pending" if reserving else "locked")]
        offer = SideLocked(exchange, outward, self.books.counts(outward))
        return [FlowSend(exchange.solver, offer, "this side is locked")]

    def apply(self, message: ApplyExchange, now: float) -> bool:
        """Apply the outcome of an exchange and unlock; return whether it changed links of this node."""
        if not self.lock.release(message.exchange):
            return False
        inflow = tuple(entry for entry in message.inflow if entry[0] in self.view.before)
        outflow = tuple(entry for entry in message.outflow if entry[0] in self.view.after)
        if not self.books.fits(inflow, outflow):
            self._suspect_all(now)
            return False
        self.books.change(inflow, False, now)
        self.books.change(outflow, True, now)
        return bool(message.inflow or message.outflow)

    def dropped(self, sender: ProcessId, message: Drop, now: float) -> None:
        """Remove outflow that a node of the next stage cannot forward: these units are loose here again."""
        count = min(message.count, self.books.outflow.get((sender, message.source), 0))
        if count:
            self.books.add(True, sender, message.source, -count, now)

    def released(self, sender: ProcessId, message: ReleaseUnits, now: float) -> None:
        """Remove inflow that a node of the stage before no longer sends: these units become orphans here."""
        count = min(message.count, self.books.inflow.get((sender, message.source), 0))
        if count:
            self.books.add(False, sender, message.source, -count, now)

    def defer(self, sender: ProcessId, message: Any) -> bool:  # noqa: ANN401
        """Defer a message that would change a locked side; return whether it is deferred."""
        match message:
            case LockRequest():
                deferred = message.patient and self.lock.locked
            case Drop() | ReleaseUnits():
                deferred = self.lock.holder(outward=isinstance(message, Drop)) is not None
            case _:
                deferred = False
        if deferred:
            self.lock.defer(sender, message)
        return deferred

    def handle_deferred(self, now: float) -> list[FlowSend]:
        """Handle the deferred messages, once no side is locked."""
        if self.lock.locked:
            return []
        deferred, self.lock.deferred = self.lock.deferred, []
        return [send for sender, message in deferred for send in self.handle(sender, message, now)]

    def repeat(self, now: float) -> list[FlowSend]:
        """Repeat unanswered messages. A node that never answers may have granted units, so its link is audited."""
        sends, silent = self.reservations.tick(now)
        for node in silent:
            self.books.suspects[node, True] = now
        return sends + self.reliable.repeat(now)

    def answered(self, sender: ProcessId, message: UnitsReserved, now: float) -> bool:
        """Book the answer to a reservation; return whether it granted units."""
        if not self.reservations.take_answer(sender, message):
            self.books.suspects[sender, True] = now  # it may have booked units that this node never sends
            return False
        if message.count:
            self.books.add(True, sender, message.source, message.count, now)
        return message.count > 0

    def audited(self, sender: ProcessId, message: Audit, now: float) -> list[FlowSend]:
        """Keep the smaller number of units on an audited link; do nothing while they may be changing."""
        outward = not message.outward
        if self._unsettled(sender, outward):
            return []
        self.books.audited(sender, message, now)
        return [] if message.answer else [self.books.audit(sender, outward, True, "asked")]

    def watch(self, now: float) -> list[FlowSend]:
        """Give up expired locks, ask for overdue outcomes, and audit links whose changes have settled."""
        sends: list[FlowSend] = []
        for exchange in self.lock.expired(now):
            self.lock.release(exchange)
            self._suspect_all(now)
            sends += self.handle_deferred(now)
        if self.lock.overdue(now):
            others = [exchange for exchange in self.lock.inquire(now) if exchange.solver != self.view.me]
            sends += [FlowSend(exchange.solver, Inquire(exchange), "the outcome is overdue") for exchange in others]
        for (node, outward), since in list(self.books.suspects.items()):
            settle_s = (SETTLE_ROUNDS if outward else RECEIVER_SETTLE_FACTOR * SETTLE_ROUNDS) * self.round_s
            if now - since < settle_s or self._unsettled(node, outward):
                continue
            self.books.suspects[node, outward] = now
            sends.append(self.books.audit(node, outward, False, "a change has settled"))
        return sends

    def _unsettled(self, node: ProcessId, outward: bool) -> bool:
        """Return whether the units of a link may be changing: its side is locked, or a reservation is pending."""
        return self.lock.holder(outward) is not None or (outward and self.reservations.is_pending_with(node))

    def update_view(self, view: View) -> None:
        """Replace the view: nodes have entered, or the capacity has changed."""
        for process in view.linked:
            self.former.pop(process, None)
        self.view = view
        self.books.capacity = view.capacity

    def forget(self, process: ProcessId, now: float) -> None:
        """Remove the links of a former neighbour, its reservations and its exchanges."""
        self.former[process] = None
        self.books.forget(process, now)
        self.avoid.pop(process, None)
        self.reservations.drop_requests_to(process)
        self.reliable.forget(process)
        for exchange in self.lock.exchanges:
            if exchange.solver == process:
                self.lock.release(exchange)
                self._suspect_all(now)

    def _suspect_all(self, now: float) -> None:
        """Have all links audited: the outcome of an exchange is unknown, or does not fit."""
        for outward in (False, True):
            for node in self.books.neighbours(outward):
                self.books.suspects[node, outward] = now
