"""The precedence of a process' lanes: one that gives way writes while no lane before it has anything to write."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from swarmflow.core.routing.background_share import BackgroundShare
from swarmflow.runtime.transport.hello import RANKS, LaneName

BACKGROUND_BYTES = 1 << 15  # longest piece of a background message that is written at once: 5 ms at 50 Mb/s
LEAD_BYTES = 1 << 18  # by which the background lanes may lag behind their share before others wait for them
PATIENCE_S = 1.0  # after so long a piece is written all the same: a stream that is stuck must not stop all others


class Precedence:
    """Counts the lanes of a process that have something to write, to whichever process, by their rank.

    A lane waits for those of lower ranks; those of rank 0 wait for none. Where others write without end, the background
    lanes get a share (see BackgroundShare): they write beside the others then, and where the upload limit is what holds
    them back, all but the control lane wait for them. Where it is a slow receiver that does, nobody does.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._busy: Counter[int] = Counter()  # lanes by rank
        self._changed = asyncio.Event()
        self._clock = clock
        self._share = BackgroundShare()
        self._limited = 0  # background lanes that wait for the upload limit

    def give(self, share: float) -> None:
        """Note that a peer loads from here, which gets at least this share of what is sent."""
        self._share.load(share, self._clock())
        self._changed.set()

    def begin(self, lane: LaneName) -> None:
        """Note that a lane has something to write from now on."""
        self._busy[RANKS[lane]] += 1

    def end(self, lane: LaneName) -> None:
        """Note that a lane has nothing to write any more."""
        rank = RANKS[lane]
        self._busy[rank] -= 1
        if not self._busy[rank]:
            if lane == "background":
                self._share.pause(self._clock())
            self._changed.set()

    def wrote(self, lane: LaneName, size_bytes: int) -> None:
        """Note that a lane has written a piece."""
        if lane == "background":
            self._share.sent(size_bytes, self._clock())
            self._changed.set()
        elif self._busy[RANKS["background"]]:
            self._share.yielded(size_bytes, self._clock())
            self._changed.set()

    @contextmanager
    def limited(self, lane: LaneName) -> Iterator[None]:
        """While a lane waits for the upload limit, lanes that are ahead of the background's share wait for it."""
        self._limited += lane == "background"
        try:
            yield
        finally:
            self._limited -= lane == "background"

    async def wait(self, lane: LaneName) -> None:
        """Wait until a lane may write a piece."""
        if not self._waits(lane):
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self._waits(lane):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    def _waits(self, lane: LaneName) -> bool:
        if lane == "control":
            return False
        first = not any(self._busy[before] for before in range(RANKS[lane]))
        if lane == "background":
            return not first and self._share.due(self._clock()) <= 0.0
        return not first or (self._limited > 0 and self._share.due(self._clock()) > LEAD_BYTES)
