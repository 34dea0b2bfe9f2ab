"""The pages of the whole swarm that a trainer serves beside its own metrics."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import NetworkError
from swarmflow.monitoring import swarm_metrics, targets
from swarmflow.runtime.execution.metrics_server import MakePage, Page

FRESH_S = 1.0  # two scrapes within this time show the same view
ANSWER_S = 5.0


def swarm_pages(ask: Callable[[], Awaitable[bytes]]) -> dict[str, MakePage]:
    """Return `/metrics/swarm` and `/targets`, by path. Call it on the event loop on which the run is asked.

    ask: returns the view of the run as JSON, from whichever trainer leads; raises SwarmflowError where there is none.
    """
    views = _Views(ask, asyncio.get_running_loop())
    return {
        "/metrics/swarm": lambda: Page(swarm_metrics.CONTENT_TYPE, swarm_metrics.swarm_metrics(views.latest())),
        "/targets": lambda: Page(targets.CONTENT_TYPE, targets.targets(views.latest())),
    }


class _Views:
    """The latest view, for the threads of the server: it is decoded in them, and not on the event loop."""

    def __init__(self, ask: Callable[[], Awaitable[bytes]], loop: asyncio.AbstractEventLoop) -> None:
        self._ask = ask
        self._loop = loop
        self._lock = threading.Lock()
        self._view: dict[str, Any] = {}
        self._asked_s = float("-inf")

    def latest(self) -> dict[str, Any]:
        """Return the view of the run, at most a second old. Raises SwarmflowError where nobody tells."""
        with self._lock:
            if time.monotonic() - self._asked_s > FRESH_S:
                self._view = _decoded(self._answer())
                self._asked_s = time.monotonic()
            return self._view

    def _answer(self) -> bytes:
        async def ask() -> bytes:
            async with asyncio.timeout(ANSWER_S):
                return await self._ask()

        asking = ask()
        try:
            return asyncio.run_coroutine_threadsafe(asking, self._loop).result(2 * ANSWER_S)
        except TimeoutError:
            raise NetworkError(f"the leader has not answered within {ANSWER_S:g} s") from None
        except RuntimeError as error:  # the loop is closed: the process ends
            asking.close()
            raise NetworkError(f"this trainer is about to leave ({error})") from None


def _decoded(answer: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(answer, type=dict[str, Any])
    except UNDECODABLE as error:
        raise NetworkError(f"the answer of the leader is no view: {error}") from None
