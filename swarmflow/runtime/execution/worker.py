"""A thread that does heavy work in the order of its priority, away from the event loop."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from swarmflow.compute.device_layer import Launched

T = TypeVar("T")

LAUNCHES_MAX = 2  # one that the device is at, and one that it can go on with at once
_END = (float("-inf"),)


class Worker:
    """Runs one function at a time, the smallest priority first, those of one priority in the order of submission.

    A function that is launched may leave its work to a device: the next one begins while the device is at it, and a
    second thread waits for the event. At most `launches_max` are ahead of the device, so that what has to go first
    waits behind no more than these. on_error is called on the event loop with the error of a function.
    """

    def __init__(self, name: str, on_error: Callable[[BaseException], None], launches_max: int = LAUNCHES_MAX) -> None:
        self._loop = asyncio.get_running_loop()
        self.on_error = on_error
        self._queue: queue.PriorityQueue[Any] = queue.PriorityQueue()
        self._order = itertools.count()
        self.busy_s = 0.0  # of the thread, and of the device with what was launched
        self.finished = 0  # functions that have ended, well or not
        self._running = False
        self._stopped = False
        self._counting = threading.Lock()
        self._free = threading.Semaphore(launches_max)
        self._launches: queue.SimpleQueue[tuple[Callable[[], None], Launched[Any], Callable[[Any], None]] | None] = (
            queue.SimpleQueue()
        )
        self._launched = 0  # that are not settled
        self._waiter: threading.Thread | None = None  # on a device that computes beside the host
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, priority: tuple[float, ...], work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Queue work; `done(result)` is called on the event loop."""
        self._put(priority, work, done)

    def launch(self, priority: tuple[float, ...], work: Callable[[], Launched[T]], done: Callable[[T], None]) -> None:
        """Queue work that may go on on a device; `done(result)` is called on the event loop when that is done."""
        self._put(priority, work, done)

    async def call(self, priority: tuple[float, ...], work: Callable[[], T]) -> T:
        """Queue work and wait for its result; an error of it is raised here, CancelledError where it is dropped."""
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

        self._put(priority, guarded, settle, future.cancel)
        return await future

    def stop(self) -> None:
        """End the thread after the current work; what is queued is dropped, as is all that comes later."""
        self._stopped = True
        with suppress(queue.Empty):
            while True:
                *_, on_dropped = self._queue.get_nowait()
                on_dropped()
        self._queue.put((_END, -1, None, None, None))

    @property
    def waiting(self) -> int:
        """Return how much work has not begun."""
        return self._queue.qsize()

    @property
    def working(self) -> bool:
        """Return whether a function runs, or the device works for one."""
        return self._running or self._launched > 0

    def _put(
        self,
        priority: tuple[float, ...],
        work: Callable[[], Any],
        done: Callable[[Any], None],
        on_dropped: Callable[[], object] = lambda: None,
    ) -> None:
        if self._stopped:
            on_dropped()
        else:
            self._queue.put((priority, next(self._order), work, done, on_dropped))

    def _run(self) -> None:
        while True:
            self._free.acquire()  # before the choice: what comes in the meantime may go first
            _, _, work, done, _ = self._queue.get()
            if work is None:
                self._launches.put(None)
                return
            began_s = time.monotonic()
            self._running = True
            try:
                result = work()
            except BaseException as error:
                callback, value = self.on_error, error
            else:
                if isinstance(result, Launched) and result.wait is not None:
                    self._wait_for(result.wait, result, done)
                    self._running = False
                    continue
                callback, value = done, result.settle() if isinstance(result, Launched) else result
            self._running = False
            self._end(time.monotonic() - began_s)
            self._tell(callback, value)

    def _wait_for(self, wait: Callable[[], None], launched: Launched[Any], done: Callable[[Any], None]) -> None:
        if self._waiter is None:
            self._waiter = threading.Thread(target=self._settle, name=f"{self._thread.name}-done", daemon=True)
            self._waiter.start()
        with self._counting:
            self._launched += 1
        self._launches.put((wait, launched, done))

    def _settle(self) -> None:
        """Wait for the device, for one launch after another."""
        while (launch := self._launches.get()) is not None:
            wait, launched, done = launch
            seconds = 0.0
            try:
                wait()
                seconds = launched.seconds()
                callback, value = done, launched.settle()
            except BaseException as error:
                callback, value = self.on_error, error
            self._end(seconds, launched=1)
            self._tell(callback, value)

    def _end(self, seconds: float, launched: int = 0) -> None:
        with self._counting:
            self._launched -= launched
            self.finished += 1
            self.busy_s += seconds
        self._free.release()

    def _tell(self, callback: Callable[[T], None], value: T) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, value)
