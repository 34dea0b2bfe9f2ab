"""Which sides of a node stand still for an exchange, since when, and what has to wait meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from swarmflow.core.flow.messages import Exchange
from swarmflow.core.types import ProcessId

INQUIRE_AFTER = 7.0  # times a message's: then the solver is asked what has come of it
INQUIRE_EVERY = 3.0
GIVE_UP_AFTER = 48.0
REMEMBERED = 32  # exchanges that are over: a question that comes late is not answered


@dataclass(slots=True)
class ExchangeLock:
    """sides: by whether it is the outflow. A node that stands still on a side changes no link of it."""

    sides: dict[bool, Exchange] = field(default_factory=dict)
    since: float = 0.0
    inquire: float = 0.0
    waiting: list[tuple[ProcessId, Any]] = field(default_factory=list)
    finished: dict[Exchange, None] = field(default_factory=dict)

    def take(self, exchange: Exchange, sides: tuple[bool, ...], now: float, round_s: float) -> bool:
        """Stand still on these sides, if none stands still for another exchange, and this one is not over."""
        if exchange in self.finished:
            return False
        if any(self.sides.get(side, exchange) != exchange for side in sides):
            return False
        for side in sides:
            self.sides[side] = exchange
        self.since, self.inquire = now, now + INQUIRE_AFTER * round_s
        return True

    def free(self, exchange: Exchange) -> bool:
        """Go on. False: it did not stand still for this one."""
        mine = [side for side, holder in self.sides.items() if holder == exchange]
        for side in mine:
            del self.sides[side]
        self.finished[exchange] = None
        while len(self.finished) > REMEMBERED:
            del self.finished[next(iter(self.finished))]
        return bool(mine)

    @property
    def exchanges(self) -> list[Exchange]:
        """Those that it stands still for."""
        return list(dict.fromkeys(self.sides.values()))
