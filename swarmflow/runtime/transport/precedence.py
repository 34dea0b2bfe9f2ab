"""The precedence of a process' lanes: one that gives way writes while no lane before it has anything to write."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from swarmflow.runtime.transport.hello import RANKS

BACKGROUND = RANKS["background"]
BACKGROUND_BYTES = 1 << 15  # longest piece of a background message that is written at once: 5 ms at 50 Mb/s
LEAD_BYTES = 1 << 18  # by which all others may be ahead of what the background lanes have had of their share
PATIENCE_S = 1.0  # after so long a piece is written all the same: a stream that is stuck must not stop all others


class Precedence:
    """Counts the lanes of a process that have something to write, to whichever process, by their rank.

    A lane of a rank waits for those of lower ranks; those of rank 0 wait for none. The background lanes may be given a
    share of all bytes: then they wait for none, and tensors and sums wait for them while they have had less.
    """

    def __init__(self) -> None:
        self._busy: Counter[int] = Counter()  # lanes by rank
        self._changed = asyncio.Event()
        self._share = 0.0  # of the background lanes; 0: what others leave
        self._lead_bytes = 0.0  # by which the others are ahead of that share

    def give(self, share: float) -> None:
        """Give the background lanes this share of the bytes, from 0 (what others leave) to less than 1.

        It ends when they have nothing to write any more: what comes after that may be less urgent.
        """
        if share != self._share:
            self._share, self._lead_bytes = share, 0.0
            self._changed.set()

    def begin(self, rank: int) -> None:
        """Note that a lane has something to write from now on."""
        self._busy[rank] += 1

    def end(self, rank: int) -> None:
        """Note that a lane has nothing to write any more."""
        self._busy[rank] -= 1
        if not self._busy[rank]:
            if rank == BACKGROUND:
                self._share = self._lead_bytes = 0.0
            self._changed.set()

    async def wait(self, rank: int, size_bytes: int = 0, urgent: bool = False) -> None:
        """Wait until a lane of this rank may write a piece. urgent: it waits for no share of others."""
        if self._share and rank == BACKGROUND:
            self._lead_bytes = max(0.0, self._lead_bytes - size_bytes * (1 - self._share) / self._share)
            self._changed.set()
            return
        await self._until(lambda: not self._precedes(rank))
        if not self._share or urgent or not self._busy[BACKGROUND]:
            return
        await self._until(lambda: self._lead_bytes <= LEAD_BYTES)
        self._lead_bytes += size_bytes

    async def _until(self, may_write: Callable[[], bool]) -> None:
        if may_write():
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not may_write():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    def _precedes(self, rank: int) -> bool:
        """Return whether a lane of a lower rank has something to write."""
        return any(self._busy[before] for before in range(rank))
