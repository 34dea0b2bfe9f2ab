"""The sides of a node that are locked for an exchange, and the messages that wait until they are free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swarmflow.core.flow.messages import Exchange
from swarmflow.core.types import ProcessId

INQUIRE_AFTER = 7.0  # rounds before the solver is asked for the outcome
INQUIRE_EVERY = 3.0  # rounds between two such questions
GIVE_UP_AFTER = 48.0  # rounds before a lock is given up
REMEMBERED = 32  # finished exchanges whose late requests are ignored


@dataclass(slots=True)
class ExchangeLock:
    """A node changes no link of a side that is locked."""

    sides: dict[bool, Exchange] = field(default_factory=dict)  # by outward: the exchange that holds the lock
    since: float = 0.0  # when the last lock was taken
    inquire: float = 0.0  # when the solver is asked next
    waiting: list[tuple[ProcessId, Any]] = field(default_factory=list)  # (sender, message) put aside
    finished: dict[Exchange, None] = field(default_factory=dict)

    def take(self, exchange: Exchange, sides: tuple[bool, ...], now: float, round_s: float) -> bool:
        """Lock these sides, unless another exchange holds one of them or this exchange has finished."""
        if exchange in self.finished:
            return False
        if any(self.sides.get(side, exchange) != exchange for side in sides):
            return False
        for side in sides:
            self.sides[side] = exchange
        self.since, self.inquire = now, now + INQUIRE_AFTER * round_s
        return True

    def free(self, exchange: Exchange) -> bool:
        """Release the sides of an exchange and mark it finished. False: it held none."""
        mine = [side for side, holder in self.sides.items() if holder == exchange]
        for side in mine:
            del self.sides[side]
        self.finished[exchange] = None
        while len(self.finished) > REMEMBERED:
            del self.finished[next(iter(self.finished))]
        return bool(mine)

    @property
    def exchanges(self) -> list[Exchange]:
        """Return the exchanges that hold a lock."""
        return list(dict.fromkeys(self.sides.values()))
