"""A thread that does heavy work in the order of its priority, away from the event loop."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_END = (float("-inf"),)  # before all queued work, which is dropped


class Worker:
    """Runs one function at a time, the smallest priority first, those of one priority in the order of submission.

    on_error is called on the event loop with the error of a function: none is swallowed.
    """

    def __init__(self, name: str, on_error: Callable[[BaseException], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_error = on_error
        self._queue: queue.PriorityQueue[Any] = queue.PriorityQueue()
        self._order = itertools.count()
        self.busy_s = 0.0
        self.finished = 0  # functions that have ended, well or not
        self.working = False  # whether a function runs
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, priority: tuple[float, ...], work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Queue work; `done(result)` is called on the event loop."""
        self._queue.put((priority, next(self._order), work, done))

    async def call(self, priority: tuple[float, ...], work: Callable[[], T]) -> T:
        """Queue work and wait for its result; an error of it is raised here."""
        future: asyncio.Future[T] = self._loop.create_future()

        def guarded() -> Callable[[], None]:
            try:
                result = work()
            except Exception as error:
                failure = error  # raised where the call is awaited
                return lambda: future.set_exception(failure)
            return lambda: future.set_result(result)

        def settle(settled: Callable[[], None]) -> None:
            if not future.done():
                settled()

        self.submit(priority, guarded, settle)
        return await future

    def stop(self) -> None:
        """End the thread after the current work."""
        self._queue.put((_END, -1, None, None))

    @property
    def waiting(self) -> int:
        """Return how much work has not begun."""
        return self._queue.qsize()

    def _run(self) -> None:
        while True:
            _, _, work, done = self._queue.get()
            if work is None:
                return
            began_s = time.monotonic()
            self.working = True
            try:
                result = work()
            except BaseException as error:
                self._tell(self._on_error, error)
                continue
            finally:
                self.working = False
                self.finished += 1
                self.busy_s += time.monotonic() - began_s
            self._tell(done, result)

    def _tell(self, callback: Callable[[T], None], value: T) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, value)
