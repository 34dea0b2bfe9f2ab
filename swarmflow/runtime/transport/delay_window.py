"""How much of a stream may be on its way: so much that it waits in the buffers of links for a short time only.

Kernels, daemons and modems take hundreds of kilobytes before a writer notices anything, and a small message behind them
waits for all of it: on a link of 4 Mb/s for 0.6 s. So a reader acknowledges what it has read, and a writer keeps little
more on its way than the link passes in a twentieth of a second. It tells what waits from what travels by the time from
writing to reading, as LEDBAT does (RFC 6817): the way back may have a queue of its own.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

QUEUE_S, QUEUE_RATE = 0.05, 1e6  # what bytes of a stream may wait if so many pass in a second
FAIR = 0.25  # of two streams the one with a sixteenth of the rate may wait twice as long, and so catches up
FIRST_BYTES = 1 << 16  # may be on their way at the beginning: 0.13 s at 4 Mb/s
LEAST_BYTES = 1 << 14
BURST_BYTES = 1 << 18  # after a pause: shaped links let as many pass at once, which says nothing of their rate
PAUSE_S = 0.1  # without anything on its way
ROUND_S = 0.25  # of which the shortest delay counts: one that comes late may have met a busy process
BASE_S = 60.0  # for which, and for as long again, the shortest delay counts as that of an idle path


@dataclass(slots=True)
class ShortestTime:
    """The shortest of times that are measured again and again, in this minute and in the last one."""

    _minute_s: float  # when this minute began
    _present_s: float = math.inf
    _former_s: float = math.inf

    def learn(self, seconds: float, now_s: float) -> None:
        """Add a measurement."""
        if now_s - self._minute_s >= BASE_S:
            self._former_s, self._present_s, self._minute_s = self._present_s, math.inf, now_s
        self._present_s = min(self._present_s, seconds)

    @property
    def seconds(self) -> float:
        """What it takes where nothing waits."""
        return min(self._present_s, self._former_s)


class DelayWindow:
    """The bytes that a stream may have on their way, by the times at which earlier ones were read.

    While hardly anything waits in either direction, it grows by all that is acknowledged after a burst, which doubles
    it in each round trip. Beside that it changes once in a round, by what passes in the time by which bytes wait too
    long, or not long enough. A round measures what was written since the last change, and so its consequences.

    All streams on a link see the same queue. So those settle at the same rate which accept the same wait, and the bytes
    of all of them together wait as long as those of one.
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
        self._was_full = False  # since the last change
        self._idle_delay = ShortestTime(clock())  # from writing to reading, with the difference of both clocks
        self._idle_trip = ShortestTime(clock())  # to the acknowledgement
        self._changed_bytes = 0  # what had been written when the window was changed last
        self._round: tuple[int, float] | None = None  # what had been read when this round began, and when that was
        self._delay_s = math.inf  # the shortest one of this round

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
            self._begin_round()  # the pause is no part of one
        self._written_bytes += size_bytes
        self._pieces.append((self._written_bytes, self._clock()))

    def acknowledged(self, read_bytes: int, read_s: float) -> None:
        """Note that so many bytes have been read, of all that were ever written.

        read_s: when, by a clock of the reader, whatever it counts from. Raises ValueError where they were acknowledged
        before, or never written.
        """
        if not self._read_bytes < read_bytes <= self._written_bytes:
            raise ValueError(f"{read_bytes} bytes after {self._read_bytes}, of {self._written_bytes}")
        now_s = self._clock()
        while self._pieces[0][0] < read_bytes:
            self._pieces.popleft()
        written_s = self._pieces[0][1]
        delay_s, trip_s = read_s - written_s, now_s - written_s
        self._idle_delay.learn(delay_s, now_s)
        self._idle_trip.learn(trip_s, now_s)
        if self._was_full and trip_s <= self._idle_trip.seconds + self._queue_s / 2:
            self.window_bytes += max(0, read_bytes - max(self._read_bytes, self._burst_bytes))
        self._read_bytes, self._acknowledged_s = read_bytes, now_s
        self._measure(delay_s, now_s)

    def _measure(self, delay_s: float, now_s: float) -> None:
        """Add a delay to the round, and fit the window to its shortest one at its end."""
        if self._read_bytes <= self._changed_bytes:
            return
        if self._round is None:
            self._round = self._read_bytes, now_s
        self._delay_s = min(self._delay_s, delay_s)
        began_bytes, began_s = self._round
        if now_s - began_s < ROUND_S:
            return
        rate = (self._read_bytes - began_bytes) / (now_s - began_s)
        if self._was_full:
            self._queue_s = QUEUE_S * (QUEUE_RATE / rate) ** FAIR
        more_bytes = int(rate * (self._queue_s - (self._delay_s - self._idle_delay.seconds)))
        if more_bytes < 0 or self._was_full:
            self.window_bytes = max(LEAST_BYTES, self.window_bytes + more_bytes)
        self._begin_round()

    def _begin_round(self) -> None:
        """Measure what is written from now on."""
        self._was_full, self._changed_bytes = False, self._written_bytes
        self._round, self._delay_s = None, math.inf
