"""How much of a stream may be on its way: so much that it waits in the buffers of links for a short time only.

Kernels, daemons and modems take hundreds of kilobytes before a writer notices anything, and a small message behind them
waits for all of it: on a link of 4 Mb/s for 0.6 s in the mean. So a reader acknowledges what it has read, and a writer
keeps little more on its way than the link passes within QUEUE_S. It tells what waits from what travels by the time that
an acknowledgement takes, as LEDBAT does (RFC 6817).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

QUEUE_S, QUEUE_RATE = 0.05, 1e6  # what bytes of a stream may wait if so many pass in a second
FAIR = 0.25  # of two streams the one with a sixteenth of the rate may wait twice as long, and so catches up
FIRST_BYTES = 1 << 16  # may be on their way at the beginning: 0.13 s at 4 Mb/s
LEAST_BYTES = 1 << 14
BURST_BYTES = 1 << 18  # after a pause: shaped links let as many pass at once, which says nothing of their rate
PAUSE_S = 0.1  # without anything on its way
ROUND_S = 0.25  # of which the shortest delay counts: one that comes late may have met a busy process
BASE_S = 60.0  # for which, and for as long again, the shortest delay counts as that of an idle path
CLOCK_S = 1e-3  # a delay is not measured more exactly


class DelayWindow:
    """The bytes that a stream may have on their way, by the delays of their acknowledgements.

    While hardly anything waits, it grows by all that is acknowledged after a burst, which doubles it in each round
    trip. Else it is fitted once in a round: to what passes at the present rate in the time of an idle path and as much
    longer as bytes may wait. All streams on a link see the same queue, so that those settle at the same rate which
    accept the same wait, and their bytes together wait as long as those of one of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.window_bytes = FIRST_BYTES
        self._clock = clock
        self._written_bytes = 0
        self._read_bytes = 0  # that are acknowledged
        self._acknowledged_s = clock()  # when the last ones were
        self._pieces: deque[tuple[int, float]] = deque()  # written: the number of its last byte, and when
        self._burst_bytes = BURST_BYTES  # the number of the last byte that may be of a burst
        self._queue_s = QUEUE_S  # that its bytes may wait, at its rate
        self._was_full = False  # in this round
        self._round_s, self._least_s = clock(), math.inf  # when it began, and its shortest delay
        self._base_s, self._former_base_s = math.inf, math.inf  # the shortest delay of this minute, and of the last one
        self._minute_s = clock()  # when it began

    @property
    def room_bytes(self) -> int:
        """How many bytes may be written now."""
        return max(0, self.window_bytes - (self._written_bytes - self._read_bytes))

    def full(self) -> None:
        """Note that there is more to write than there is room."""
        self._was_full = True

    def wrote(self, size_bytes: int) -> None:
        """Note that these bytes are on their way."""
        if self._written_bytes == self._read_bytes and self._clock() - self._acknowledged_s >= PAUSE_S:
            self._burst_bytes = self._written_bytes + BURST_BYTES
        self._written_bytes += size_bytes
        self._pieces.append((self._written_bytes, self._clock()))

    def acknowledged(self, read_bytes: int) -> None:
        """Note that so many bytes have been read, of all that were ever written.

        Raises ValueError where they were acknowledged before, or never written.
        """
        if not self._read_bytes < read_bytes <= self._written_bytes:
            raise ValueError(f"{read_bytes} bytes after {self._read_bytes}, of {self._written_bytes}")
        now_s = self._clock()
        while self._pieces[0][0] < read_bytes:
            self._pieces.popleft()
        delay_s = now_s - self._pieces[0][1]
        self._learn(delay_s, now_s)
        if self._was_full and delay_s <= self._idle_s + self._queue_s / 2:
            self.window_bytes += max(0, read_bytes - max(self._read_bytes, self._burst_bytes))
        self._read_bytes, self._acknowledged_s = read_bytes, now_s
        if now_s - self._round_s >= max(ROUND_S, self._least_s):
            self._end_round(now_s)

    @property
    def _idle_s(self) -> float:
        """What an acknowledgement takes where nothing waits."""
        return min(self._base_s, self._former_base_s)

    def _learn(self, delay_s: float, now_s: float) -> None:
        if now_s - self._minute_s >= BASE_S:
            self._former_base_s, self._base_s, self._minute_s = self._base_s, math.inf, now_s
        self._base_s = min(self._base_s, delay_s)
        self._least_s = min(self._least_s, delay_s)

    def _end_round(self, now_s: float) -> None:
        """Fit the window to what this round's shortest delay says of the link."""
        rate = self.window_bytes / max(self._least_s, CLOCK_S)
        if self._was_full:
            self._queue_s = QUEUE_S * (QUEUE_RATE / rate) ** FAIR
        if self._least_s > self._idle_s + self._queue_s / 2:
            fitting_bytes = max(LEAST_BYTES, int(rate * (self._idle_s + self._queue_s)))
            if fitting_bytes < self.window_bytes or self._was_full:
                self.window_bytes = fitting_bytes
        self._was_full, self._round_s, self._least_s = False, now_s, math.inf
