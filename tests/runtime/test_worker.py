"""A thread for heavy work: whoever waits for it is not left waiting when it ends."""

from __future__ import annotations

import asyncio
import threading

import pytest

from swarmflow.runtime.execution.worker import Worker
from tests.runtime.nodes import DEADLINE_S

pytestmark = pytest.mark.asyncio

FIRST = (0.0,)


async def test_calls_that_are_dropped_at_the_end_or_come_after_it_are_cancelled() -> None:
    failures: list[BaseException] = []
    worker, begun, go = Worker("compute", failures.append), threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        assert go.wait(DEADLINE_S)
        return "done"

    running = asyncio.create_task(worker.call(FIRST, work))
    assert await asyncio.to_thread(begun.wait, DEADLINE_S)
    queued = asyncio.create_task(worker.call(FIRST, work))
    while not worker.waiting:
        await asyncio.sleep(0)
    worker.stop()
    async with asyncio.timeout(DEADLINE_S):
        for dropped in (queued, worker.call(FIRST, work)):
            with pytest.raises(asyncio.CancelledError):
                await dropped
        go.set()
        assert await running == "done"
    assert not failures
