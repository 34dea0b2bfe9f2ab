"""Settings that every test shares."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import pytest
import uvloop
from xdist.scheduler import LoadScopeScheduling

from swarmflow.local.patience import crowding

# Set before torch or OpenMP is loaded: the tests start many processes, and more threads than cores only slow them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TOGETHER = {"tests/swarm/test_faults.py", "tests/swarm/test_lifecycle.py"}
DEADLINE_S = 60.0  # of an asynchronous test, on a machine that has time
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:  # noqa: ANN401
    """Give each test to whichever worker is free, but those that share a swarm to one: else it is set up twice."""
    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = scope_of
    return scheduling


def pytest_collection_finish() -> None:
    """Exclude the libraries from garbage collection: they are a million objects, and the tests make millions more."""
    gc.collect()
    gc.freeze()


def scope_of(test: str) -> str:
    """What tests have in common that have to run in one worker: their file, or nothing but themselves."""
    file = test.partition("::")[0]
    return file if file in TOGETHER else test


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of an asynchronous test is that of the processes, unless its marker names others."""
    marker = item.get_closest_marker("asyncio")
    named = marker is not None and "loop_factories" in marker.kwargs
    return LOOPS if named else {"uvloop": LOOPS["uvloop"]}


def pytest_itemcollected(item: pytest.Item) -> None:
    """An asynchronous test that hangs fails after DEADLINE_S, with the traceback of what it waits for."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        item.obj = within_deadline(item.obj)


def within_deadline(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    @functools.wraps(test)
    async def bounded(*args: object, **kwargs: object) -> None:
        async with asyncio.timeout(DEADLINE_S * crowding()):
            await test(*args, **kwargs)

    return bounded


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Give each test the log as it found it: a command that runs in the test's process sets it up for itself."""
    log = logging.getLogger("swarmflow")
    handlers, level, propagate = list(log.handlers), log.level, log.propagate
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)
