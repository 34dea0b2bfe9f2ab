"""What streams have on their way over a pretended link: little waits there, and the link is never idle for that."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import pytest

from swarmflow.runtime.transport.acknowledging import ACKNOWLEDGED_S, MANY_BYTES, SOON_S
from swarmflow.runtime.transport.delay_window import BASE_S, BURST_BYTES, FIRST_BYTES, QUEUE_S, DelayWindow
from swarmflow.runtime.transport.lanes import ROOM

TICK_S = 0.001
MEASURED_S = 3.0
CLOCKS_APART_S = 1e6


class Stream:
    """A writer that has more to write than there is room, and its reader."""

    def __init__(self, link: Link, writes: bool = False) -> None:
        self.window = DelayWindow(lambda: link.now_s)
        self.read_bytes = 0
        self.writes = writes  # whether it has anything to write
        self._acknowledged_bytes, self._acknowledged_s = 0, 0.0
        self._acknowledgements: deque[tuple[float, int, float]] = (
            deque()
        )  # (when they arrive, bytes, when they were read)

    def act(self, link: Link) -> None:
        """Do what is due now at both ends."""
        new_bytes = self.read_bytes - self._acknowledged_bytes
        soon_s = SOON_S if new_bytes >= MANY_BYTES else ACKNOWLEDGED_S
        if new_bytes and link.now_s - self._acknowledged_s >= soon_s and link.now_s % 0.5 >= link.busy_s:
            self._acknowledged_bytes, self._acknowledged_s = self.read_bytes, link.now_s
            self._acknowledgements.append((link.now_s + link.back_s, self.read_bytes, link.now_s - CLOCKS_APART_S))
        while self._acknowledgements and self._acknowledgements[0][0] <= link.now_s:
            self.window.acknowledged(*self._acknowledgements.popleft()[1:])
        room_bytes = self.window.room_bytes
        if self.writes and room_bytes >= self.window.window_bytes // ROOM:
            self.window.wrote(room_bytes)
            link.queue.append(Written(self, room_bytes))
        if self.writes:
            self.window.full()


@dataclass
class Written:
    """What a stream has written, and has not passed the link."""

    stream: Stream
    size_bytes: int


class Link:
    """A link that passes what is written one after the other, and lets a burst pass at once after a pause.

    busy_s: for so long in each half of a second readers do nothing.
    """

    def __init__(self, bytes_per_s: float, latency_s: float, burst_bytes: float = 0.0, busy_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.latency_s = self.back_s = latency_s  # of what passes the link, and of acknowledgements
        self.busy_s = busy_s
        self.queue: deque[Written] = deque()
        self.waiting_s: list[float] = []  # by tick: what a message would wait that is sent now
        self._bytes_per_s, self._burst_bytes, self._tokens = bytes_per_s, burst_bytes, burst_bytes
        self._passed: deque[tuple[float, Stream, int]] = deque()  # what is through, and arrives later

    def run(self, streams: Sequence[Stream], seconds: float) -> None:
        """Let time pass."""
        self.waiting_s.clear()
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            while self._passed and self._passed[0][0] <= self.now_s:
                _, stream, size_bytes = self._passed.popleft()
                stream.read_bytes += size_bytes
            for stream in streams:
                stream.act(self)
            self._pass_on()
            self.waiting_s.append(sum(written.size_bytes for written in self.queue) / self._bytes_per_s)

    def _pass_on(self) -> None:
        self._tokens = min(self._tokens, self._burst_bytes) + self._bytes_per_s * TICK_S
        while self.queue and self._tokens >= 1:
            first = self.queue[0]
            size_bytes = min(first.size_bytes, int(self._tokens))
            self._tokens -= size_bytes
            self._passed.append((self.now_s + self.latency_s, first.stream, size_bytes))
            first.size_bytes -= size_bytes
            if not first.size_bytes:
                self.queue.popleft()


def rate_of(link: Link, stream: Stream) -> float:
    """Let the stream write for a while; return the bytes/s that are read."""
    before_bytes = stream.read_bytes
    link.run([stream], MEASURED_S)
    return (stream.read_bytes - before_bytes) / MEASURED_S


def step(link: Link, streams: Sequence[Stream], first: int, seconds: float) -> list[int]:
    """Let the streams begin one after the other, and pause; return the bytes of each in the seconds between."""
    for number in range(len(streams)):
        streams[(first + number) % len(streams)].writes = True
        link.run(streams, 0.2)
    before_bytes = [stream.read_bytes for stream in streams]
    link.run(streams, seconds)
    gained_bytes = [stream.read_bytes - before for stream, before in zip(streams, before_bytes, strict=True)]
    waiting_s = link.waiting_s[:]
    for stream in streams:
        stream.writes = False
    link.run(streams, 1.0)
    link.waiting_s = waiting_s
    return gained_bytes


@pytest.mark.parametrize("latency_s", [0.0005, 0.02, 0.1])
@pytest.mark.parametrize("bytes_per_s", [0.25e6, 0.5e6, 5e6, 50e6])
def test_little_waits_on_a_link_that_is_used_well(bytes_per_s: float, latency_s: float) -> None:
    link = Link(bytes_per_s, latency_s)
    stream = Stream(link, writes=True)
    link.run([stream], 5.0)
    assert rate_of(link, stream) > 0.95 * bytes_per_s
    assert fmean(link.waiting_s) < 2.5 * QUEUE_S


@pytest.mark.parametrize("latency_s", [0.0005, 0.02])
@pytest.mark.parametrize(("bytes_per_s", "count"), [(0.5e6, 2), (0.5e6, 4), (5e6, 3), (50e6, 2)])
def test_streams_share_a_link_and_little_waits_all_the_same(bytes_per_s: float, count: int, latency_s: float) -> None:
    """One of them has had it for itself before the others came, and each is the first one after some pause."""
    link = Link(bytes_per_s, latency_s)
    streams = [Stream(link) for _ in range(count)]
    step(link, streams[:1], 0, 3.0)
    for first in range(5):
        gained_bytes = step(link, streams, first, 3.0)
    assert sum(gained_bytes) > 0.95 * 3.0 * bytes_per_s
    assert min(gained_bytes) > 0.1 * max(gained_bytes), "nobody starves; they come closer from step to step"
    assert fmean(link.waiting_s) < 0.15


def test_a_burst_that_passes_at_once_is_not_taken_for_the_rate_of_a_link() -> None:
    link = Link(0.5e6, 0.001, burst_bytes=BURST_BYTES / 2)
    stream = Stream(link)
    for _ in range(5):
        step(link, [stream], 0, 1.0)
        assert max(link.waiting_s) < 0.25


def test_acknowledgements_that_busy_processes_hold_up_are_no_queue() -> None:
    link = Link(5e6, 0.01, busy_s=0.1)
    stream = Stream(link, writes=True)
    link.run([stream], 5.0)
    assert rate_of(link, stream) > 0.75 * 5e6


def test_a_path_that_has_become_longer_is_not_taken_for_a_queue_for_ever() -> None:
    link = Link(5e6, 0.01)
    stream = Stream(link, writes=True)
    link.run([stream], 3.0)
    link.latency_s = 0.1
    link.run([stream], 2 * BASE_S)
    assert rate_of(link, stream) > 0.95 * 5e6


def test_a_queue_on_the_way_back_is_none_on_the_way_there() -> None:
    link = Link(0.5e6, 0.01)
    stream = Stream(link, writes=True)
    link.run([stream], 3.0)
    link.back_s = 0.3
    link.run([stream], 6.0)
    assert rate_of(link, stream) > 0.95 * 0.5e6
    assert fmean(link.waiting_s) < 2.5 * QUEUE_S


@pytest.mark.parametrize("read_bytes", [0, 100, 301])
def test_what_was_acknowledged_before_or_never_written_is_refused(read_bytes: int) -> None:
    window = DelayWindow()
    window.wrote(100)
    window.wrote(200)
    window.acknowledged(100, 0.0)
    with pytest.raises(ValueError, match=f"{read_bytes} bytes after 100, of 300"):
        window.acknowledged(read_bytes, 0.0)
    assert window.room_bytes == FIRST_BYTES - 200
