"""Measures how long a process has made no progress although it has work to do, for its health check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LOOK_EVERY_S = 1.0
BLOCKED_S = 10.0  # an event loop that has not looked for longer counts as blocked


class ProgressWatch:
    """Looks at the signs of progress of one process each second, from its event loop.

    A process that waits for others makes no progress either, and is well: only the time with work of its own counts. A
    blocked event loop stops looking, and that counts too. Any thread may read `stalled_s`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._signs: object = None
        self._since_s: float | None = None  # last progress of a process with work; None: it has none
        self._looked_s: float | None = None  # last look; None: nothing is to be watched

    def look(self, signs: object, has_work: bool) -> None:
        """Record the present state. signs: anything that differs after progress."""
        now_s = self._clock()
        if not has_work:
            self._since_s = None
        elif self._since_s is None or signs != self._signs:
            self._since_s = now_s
        self._signs, self._looked_s = signs, now_s

    async def follow(self, state: Callable[[], tuple[object, bool]]) -> None:
        """Look at `state()`, the signs and whether there is work, each second until cancelled."""
        try:
            while True:
                self.look(*state())
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self.pause()

    def pause(self) -> None:
        """Stop watching until the next look: the process joins, loads or ends."""
        self._since_s = self._looked_s = None

    def stalled_s(self) -> float:
        """Return the seconds without progress; 0: it makes progress, or has nothing to do."""
        now_s, since_s, looked_s = self._clock(), self._since_s, self._looked_s
        if looked_s is None:
            return 0.0
        blocked_s = now_s - looked_s
        owed_s = looked_s - since_s if since_s is not None else 0.0
        return owed_s + blocked_s if blocked_s > BLOCKED_S or since_s is not None else 0.0
