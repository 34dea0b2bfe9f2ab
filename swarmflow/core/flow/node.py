"""The base of relays and data nodes: books, audits, and locks for the exchanges of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from swarmflow.core.flow.books import Books
from swarmflow.core.flow.exchange_lock import GIVE_UP_AFTER, INQUIRE_EVERY, ExchangeLock
from swarmflow.core.flow.messages import (
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
from swarmflow.core.flow.node_types import FlowSend, Link, View
from swarmflow.core.flow.reliable import ReliableDelivery
from swarmflow.core.flow.reservations import Reservations
from swarmflow.core.types import ProcessId

SETTLE = 14.0  # times a message's: after which a changed link is audited


class NodeBase(ABC):
    """round_s: about how long a message takes to a neighbour."""

    def __init__(self, view: View, round_s: float = 1.0) -> None:
        self.view = view
        self.round_s = round_s
        self.books = Books(view.me, view.capacity)
        self.lock = ExchangeLock()
        self.dead: dict[ProcessId, None] = {}
        self.reservations = Reservations(round_s)
        self.reliable = ReliableDelivery(round_s)

    @property
    def inflow(self) -> dict[Link, int]:
        """Return the units that come in, by link."""
        return self.books.inflow

    @property
    def outflow(self) -> dict[Link, int]:
        """Return the units that go out, by link."""
        return self.books.outflow

    def handle(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message and return the answers."""
        if sender in self.dead or self.has_to_wait(sender, message):
            return []
        match message:
            case Reliable():
                got = FlowSend(sender, Ack(message.number), "heard")
                again = not self.reliable.first(sender, message)
                return [got] if again else [got, *self.handle(sender, message.message, now)]
            case Ack():
                self.reliable.acknowledged(message)
                return []
            case Audit():
                return self.audited(sender, message, now)
            case SideLockRequest():
                return self.stand_beside(sender, message, now)
        return self.received(sender, message, now)

    @abstractmethod
    def received(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message that is of a relay or of a data node alone."""

    def stand_beside(self, sender: ProcessId, message: SideLockRequest, now: float) -> list[FlowSend]:
        """Lock one side as a neighbour of the window, unless a reservation is under way there."""
        exchange = message.exchange
        if exchange in self.lock.finished:
            return []
        if self.lock.sides.get(message.outward) == exchange:
            offer = SideLocked(exchange, message.outward, self.books.counts(message.outward))
            return [FlowSend(exchange.solver, offer, "asked again")] if sender == exchange.solver else []
        blocked = message.outward and bool(self.reservations.under_way)
        if blocked or not self.lock.take(exchange, (message.outward,), now, self.round_s):
            return [
                FlowSend(
                    exchange.solver, LockDenied(exchange, message.outward), "reserves" if blocked else "stands still"
                )
            ]
        offer = SideLocked(exchange, message.outward, self.books.counts(message.outward))
        return [FlowSend(exchange.solver, offer, "stands still")]

    def apply(self, message: ApplyExchange, now: float) -> bool:
        """Apply the outcome of an exchange. True: something was changed here."""
        if not self.lock.free(message.exchange):
            return False
        inflow = tuple(entry for entry in message.inflow if entry[0] not in self.dead)
        outflow = tuple(entry for entry in message.outflow if entry[0] not in self.dead)
        if not self.books.fits(inflow, outflow):
            self._suspect_all(now)
            return False
        self.books.change(inflow, False, now)
        self.books.change(outflow, True, now)
        return bool(message.inflow or message.outflow)

    def dropped(self, sender: ProcessId, message: Drop, now: float) -> None:
        """Take back units that the next stage gives up: they are loose here."""
        count = min(message.count, self.books.outflow.get((sender, message.source), 0))
        if count:
            self.books.add(True, sender, message.source, -count, now)

    def released(self, sender: ProcessId, message: ReleaseUnits, now: float) -> None:
        """Remove units that the stage before releases: what goes on from here is an orphan."""
        count = min(message.count, self.books.inflow.get((sender, message.source), 0))
        if count:
            self.books.add(False, sender, message.source, -count, now)

    def has_to_wait(self, sender: ProcessId, message: Any) -> bool:  # noqa: ANN401
        """Put aside a message that would change a locked side. True: it waits."""
        if isinstance(message, LockRequest):
            waits = message.patient and bool(self.lock.sides)
        else:
            waits = isinstance(message, Drop | ReleaseUnits) and isinstance(message, Drop) in self.lock.sides
        if not waits:
            return False
        self.lock.waiting.append((sender, message))
        return True

    def take_waiting(self) -> list[tuple[ProcessId, Any]]:
        """Return the messages that were put aside, once no side is locked."""
        if self.lock.sides:
            return []
        waiting, self.lock.waiting = self.lock.waiting, []
        return waiting

    def ask_again(self, now: float) -> list[FlowSend]:
        """Repeat messages without an answer. A node that never answers may have granted units: its link is audited."""
        sends, silent = self.reservations.again(now)
        for node in silent:
            self.books.suspects[node, True] = now
        return sends + self.reliable.again(now)

    def answered(self, sender: ProcessId, message: UnitsReserved, now: float) -> bool:
        """Take an answer to a reservation. True: it granted units."""
        if not self.reservations.answered(sender, message):
            self.books.suspects[sender, True] = now  # the other end may have units that are not sent
            return False
        if message.count:
            self.books.add(True, sender, message.source, message.count, now)
        return message.count > 0

    def audited(self, sender: ProcessId, message: Audit, now: float) -> list[FlowSend]:
        """Compare a link; both ends keep the smaller number. Skipped while that side is locked or reserves."""
        outward = not message.outward
        if outward in self.lock.sides or (outward and self.reservations.with_node(sender)):
            return []
        self.books.audited(sender, message, now)
        return [] if message.answer else [self.books.audit(sender, outward, True, "asked")]

    def watch(self, now: float) -> list[FlowSend]:
        """Ask what has become of an exchange, give it up in the end; audit links that have settled."""
        sends = []
        lock = self.lock
        if lock.sides and now >= lock.inquire:
            if now - lock.since >= GIVE_UP_AFTER * self.round_s:
                for exchange in lock.exchanges:
                    lock.free(exchange)
                self._suspect_all(now)
            else:
                lock.inquire = now + INQUIRE_EVERY * self.round_s
                others = [exchange for exchange in lock.exchanges if exchange.solver != self.view.me]
                sends += [FlowSend(exchange.solver, Inquire(exchange), "what came of it?") for exchange in others]
        for (node, outward), since in list(self.books.suspects.items()):
            # The sending end asks first; the other one only if it hears nothing.
            settled_s = (SETTLE if outward else 1.7 * SETTLE) * self.round_s
            if now - since < settled_s or outward in lock.sides or (outward and self.reservations.with_node(node)):
                continue
            self.books.suspects[node, outward] = now
            sends.append(self.books.audit(node, outward, False, "a change has settled"))
        return sends

    def join(self, view: View) -> None:
        """Others are there now, too, or it can hold another number. view: with them."""
        for process in (*view.before, *view.beside, *view.after):
            self.dead.pop(process, None)
        self.view = view
        self.books.capacity = view.capacity

    def forget(self, process: ProcessId, now: float) -> None:
        """A dead process: its links, reservations and exchanges are no more."""
        self.dead[process] = None
        self.books.forget(process, now)
        self.reservations.forget(process)
        self.reliable.forget(process)
        for exchange in self.lock.exchanges:
            if exchange.solver == process:
                self.lock.free(exchange)
                self._suspect_all(now)

    def _suspect_all(self, now: float) -> None:
        for outward in (False, True):
            for node in self.books.neighbours(outward):
                self.books.suspects[node, outward] = now
