"""The precedence of a process' messages: those of training are sent first, background answers while none waits."""

from __future__ import annotations

import asyncio

BACKGROUND_BYTES = 1 << 15  # longest piece of a background message that is written at once: 5 ms at 50 Mb/s
PATIENCE_S = 1.0  # after so long a piece is sent all the same: a stream that is stuck must not stop a load for ever


class Precedence:
    """Counts the lanes of a process with messages of training that wait or are being written, to whichever process."""

    def __init__(self) -> None:
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """Note that a lane has messages of training from now on."""
        self._busy += 1
        self._idle.clear()

    def end(self) -> None:
        """Note that a lane has none any more."""
        self._busy -= 1
        if not self._busy:
            self._idle.set()

    async def wait(self) -> None:
        """Wait until background bytes may be written."""
        if self._idle.is_set():
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._idle.wait()
        except TimeoutError:
            return
