"""Records the run of the demonstration from a thread of its own, and serves its page."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from swarmflow.errors import NetworkError
from swarmflow.page.recording import Recording
from swarmflow.page.server import PageServer
from swarmflow.runtime.operations.watching import Ask, LiveFeed

HOST = "127.0.0.1"
LOOK_S = 0.5  # between two looks at the run
START_S = 30.0
FRAMES_MAX = 2000  # of a longer recording every second frame is dropped

Event = dict[str, Any]
View = dict[str, Any]


@dataclass(slots=True)
class Film:
    """The views of a run in the order of their times, and its events, each with the view before it."""

    frames: list[View] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    news: deque[tuple[Event, View | None]] = field(default_factory=deque)  # events that nobody has taken yet

    def add(self, view: View, events: list[Event]) -> None:
        """Add a view, and the events since the one before."""
        before = self.frames[-1] if self.frames else None
        self.events += events
        self.news.extend((event, before) for event in events)
        if view is not before:
            self.frames.append(view)
        if len(self.frames) > FRAMES_MAX:
            del self.frames[1::2]

    def recording(self, steps: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the recording of docs/view.md, whose times begin with the first view. steps: all of the run."""
        began_s = self.frames[0]["time"] if self.frames else 0.0

        def from_start(entry: dict[str, Any]) -> dict[str, Any]:
            return {**entry, "time": max(0.0, entry["time"] - began_s)}

        frames = [{"t": view["time"] - began_s, "view": view} for view in self.frames]
        ends = [frame["t"] for frame in frames[-1:]] + [from_start(step)["time"] for step in steps[-1:]]
        return {
            "duration_s": max(ends, default=0.0),
            "frames": frames,
            "events": [from_start(event) for event in self.events],
            "steps": [from_start(step) for step in steps],
        }


class _Feed:
    """What the page shows: the run while it lasts, then its recording, to which a page that is open turns by itself."""

    def __init__(self, live: LiveFeed) -> None:
        self.live = live
        self.recorded: Recording | None = None

    async def run(self, after: int) -> bytes:
        return await (self.recorded or self.live).run(after)

    async def steps(self, after: int) -> bytes:
        return await (self.recorded or self.live).steps(after)

    async def recording(self) -> bytes | None:
        return None if self.recorded is None else await self.recorded.recording()


class RunRecorder:
    """Asks a run again and again inside its `with` block, and serves its page there."""

    def __init__(self, ask: Ask) -> None:
        """ask: puts a question to the run; raises SwarmflowError where it does not answer."""
        self.address = ""  # of the page
        self._film = Film()
        self._feed = _Feed(LiveFeed(ask))
        self._seen = 0  # number of the last event in the film
        self._ended = asyncio.Event()
        self._started: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._record()), name="recorder", daemon=True)

    def __enter__(self) -> Self:
        """Begin. Raises NetworkError where the page cannot be served."""
        self._thread.start()
        self._loop, port = self._started.result(START_S)
        self.address = f"http://{HOST}:{port}/"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(RuntimeError):  # the thread has ended already
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def news(self) -> list[tuple[Event, View | None]]:
        """Return the events since the last call, each with the view before it."""
        news = self._film.news
        return [news.popleft() for _ in range(len(news))]

    @property
    def view(self) -> View | None:
        """The latest view of the run."""
        return self._film.frames[-1] if self._film.frames else None

    def replay(self, steps: list[dict[str, Any]]) -> list[Event]:
        """Stop asking: from now on the page plays the recording, with these steps. Return all events."""
        self._feed.recorded = Recording(self._film.recording(steps))
        return list(self._film.events)

    async def _record(self) -> None:
        server = PageServer(self._feed)
        try:
            port = await server.start(HOST, 0)
        except NetworkError as error:
            self._started.set_exception(error)
            return
        self._started.set_result((asyncio.get_running_loop(), port))
        try:
            while not self._ended.is_set():
                if self._feed.recorded is None:
                    await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._ended.wait()
        finally:
            server.close()

    async def _look(self) -> None:
        await self._feed.live.refresh()
        mirror = self._feed.live.mirror
        if mirror.view is not None:
            events = mirror.own.events_after(self._seen)
            self._seen = events[-1]["seq"] if events else self._seen
            self._film.add(mirror.view, events)
