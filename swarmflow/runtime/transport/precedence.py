"""The precedence of a process' lanes: one that gives way writes while no lane before it has anything to write."""

from __future__ import annotations

import asyncio
from collections import Counter

BACKGROUND_BYTES = 1 << 15  # longest piece of a background message that is written at once: 5 ms at 50 Mb/s
PATIENCE_S = 1.0  # after so long a piece is written all the same: a stream that is stuck must not stop all others


class Precedence:
    """Counts the lanes of a process that have something to write, to whichever process, by their rank.

    A lane of a rank waits for those of lower ranks; those of rank 0 wait for none.
    """

    def __init__(self) -> None:
        self._busy: Counter[int] = Counter()  # lanes by rank
        self._changed = asyncio.Event()

    def begin(self, rank: int) -> None:
        """Note that a lane has something to write from now on."""
        self._busy[rank] += 1

    def end(self, rank: int) -> None:
        """Note that a lane has nothing to write any more."""
        self._busy[rank] -= 1
        if not self._busy[rank]:
            self._changed.set()

    async def wait(self, rank: int) -> None:
        """Wait until a lane of this rank may write a piece."""
        if not self._waits(rank):
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self._waits(rank):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    def _waits(self, rank: int) -> bool:
        return any(self._busy[before] for before in range(rank))
