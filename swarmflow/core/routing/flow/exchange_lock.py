"""The sides of a node that are locked for an exchange, and the messages that are deferred until they are unlocked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from swarmflow.core.protocol.messages.negotiation import Exchange
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.transitions import Transitions

INQUIRE_AFTER_ROUNDS = 7.0  # before the solver is asked for the outcome
INQUIRE_INTERVAL_ROUNDS = 3.0  # between two such questions
GIVE_UP_ROUNDS = 48.0  # before a lock is released without an outcome, however often it was requested
DEFERRED_MAX = 512  # messages that are deferred: an audit settles what further ones would have changed
REMEMBERED_MAX = 32  # finished exchanges whose late requests are ignored


class ExchangeLockState(StrEnum):
    """Whether a node may change its links, or keeps them as they are until the outcome of an exchange arrives."""

    UNLOCKED = "unlocked"  # no side is locked
    LOCKED = "locked"  # a side is locked, and the outcome is not overdue
    INQUIRING = "inquiring"  # the outcome is overdue: its solver is asked for it


EXCHANGE_LOCK_STATES = Transitions(
    "exchange lock",
    ExchangeLockState.UNLOCKED,
    {
        ExchangeLockState.UNLOCKED: {ExchangeLockState.LOCKED: "a side is locked"},
        ExchangeLockState.LOCKED: {
            ExchangeLockState.LOCKED: "another side is locked, or the request is repeated",
            ExchangeLockState.INQUIRING: "the outcome is overdue",
            ExchangeLockState.UNLOCKED: "the outcome has arrived, the solver is dead, or the lock is given up",
        },
        ExchangeLockState.INQUIRING: {
            ExchangeLockState.INQUIRING: "the outcome is still missing",
            ExchangeLockState.LOCKED: "another side is locked, or the request is repeated",
            ExchangeLockState.UNLOCKED: "the outcome has arrived, the solver is dead, or the lock is given up",
        },
    },
)


@dataclass(slots=True)
class ExchangeLock:
    """The exchanges that hold the sides of a node. A node changes no link of a side that is locked."""

    round_s: float
    state: ExchangeLockState = field(init=False, default=ExchangeLockState.UNLOCKED)
    deferred: list[tuple[ProcessId, Any]] = field(init=False, default_factory=list)  # (sender, message)
    _sides: dict[bool, Exchange] = field(init=False, default_factory=dict)  # outward -> the exchange that holds it
    _since: dict[Exchange, float] = field(init=False, default_factory=dict)  # when each of them took its first side
    _inquire_at: float = field(init=False, default=0.0)  # when the outcome is asked for, or asked for again
    _finished: dict[Exchange, None] = field(init=False, default_factory=dict)  # the latest ones, in order

    @property
    def locked(self) -> bool:
        """Return whether a side is locked."""
        return self.state is not ExchangeLockState.UNLOCKED

    @property
    def exchanges(self) -> list[Exchange]:
        """Return the exchanges that hold a side."""
        return list(dict.fromkeys(self._sides.values()))

    def holder(self, outward: bool) -> Exchange | None:
        """Return the exchange that holds a side; None: the side is not locked."""
        return self._sides.get(outward)

    def finished(self, exchange: Exchange) -> bool:
        """Return whether an exchange has released this node lately, so that its late requests are ignored."""
        return exchange in self._finished

    def acquire(self, exchange: Exchange, sides: tuple[bool, ...], now: float) -> bool:
        """Lock these sides; return False if another exchange holds one of them, or this exchange has finished."""
        if exchange in self._finished:
            return False
        if any(self._sides.get(side, exchange) != exchange for side in sides):
            return False
        for side in sides:
            self._sides[side] = exchange
        self._since.setdefault(exchange, now)
        self._inquire_at = now + INQUIRE_AFTER_ROUNDS * self.round_s
        self._move(ExchangeLockState.LOCKED)
        return True

    def release(self, exchange: Exchange) -> bool:
        """Unlock the sides of an exchange and mark it finished; return whether it held any."""
        held = [side for side, holder in self._sides.items() if holder == exchange]
        for side in held:
            del self._sides[side]
        self._since.pop(exchange, None)
        if held and not self._sides:
            self._move(ExchangeLockState.UNLOCKED)
        self._finished[exchange] = None
        while len(self._finished) > REMEMBERED_MAX:
            del self._finished[next(iter(self._finished))]
        return bool(held)

    def overdue(self, now: float) -> bool:
        """Return whether the solver is to be asked for the outcome."""
        return self.locked and now >= self._inquire_at

    def expired(self, now: float) -> list[Exchange]:
        """Return the exchanges that have held a side for so long that it is to be released without an outcome."""
        return [exchange for exchange, since in self._since.items() if now - since >= GIVE_UP_ROUNDS * self.round_s]

    def defer(self, sender: ProcessId, message: Any) -> None:  # noqa: ANN401
        """Keep a message until no side is locked, unless there are too many."""
        if len(self.deferred) < DEFERRED_MAX:
            self.deferred.append((sender, message))

    def inquire(self, now: float) -> list[Exchange]:
        """Return the exchanges whose outcome is to be asked for; the next time is after INQUIRE_INTERVAL_ROUNDS."""
        self._inquire_at = now + INQUIRE_INTERVAL_ROUNDS * self.round_s
        self._move(ExchangeLockState.INQUIRING)
        return self.exchanges

    def _move(self, to: ExchangeLockState) -> None:
        assert bool(self._sides) == (to is not ExchangeLockState.UNLOCKED), f"{len(self._sides)} sides locked at {to}"
        self.state = EXCHANGE_LOCK_STATES.move(self.state, to)
