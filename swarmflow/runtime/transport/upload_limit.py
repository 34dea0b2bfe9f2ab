"""Limits the bytes per second that a process writes to all of its links together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

BURST_S = 0.25  # unused time that may be made up for: a sleep that ends late then costs no throughput
PIECE_S = 0.05  # a piece takes the links for so long, after which the next link has its turn
PIECE_BYTES_MIN = 4096


class UploadLimit:
    """A token bucket, kept as the time at which all bytes that were granted so far are sent at the limit.

    Pieces are granted in the order in which they ask, so that links share the limit evenly: each asks for one piece at
    a time. Bytes that must not wait (`count`) delay the pieces after them.
    """

    def __init__(
        self,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self.piece_bytes = max(PIECE_BYTES_MIN, int(bytes_per_s * PIECE_S))  # longest piece to ask for
        self._clock = clock
        self._sleep = sleep
        self._free_s = clock()

    async def wait(self, size_bytes: int) -> None:
        """Wait until this many bytes may be sent."""
        begins_s = self.count(size_bytes)
        now = self._clock()
        if begins_s > now:
            await self._sleep(begins_s - now)

    def count(self, size_bytes: int) -> float:
        """Count bytes that are sent at once; return when they would be due."""
        begins_s = max(self._free_s, self._clock() - BURST_S)
        self._free_s = begins_s + size_bytes / self.bytes_per_s
        return begins_s
