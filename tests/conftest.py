"""Settings that every test shares."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import inspect
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import uvloop
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from swarmflow.local.forkserver import CAN_FORK, ForkServer
from swarmflow.local.load_aware import load_factor
from swarmflow.local.swarm import environment

# Set before torch or OpenMP is loaded: the tests start many processes, and more threads than cores only slow them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No property test fails for how long it takes on a busy machine. The first text that a new checkout draws takes over a
# second by itself: Hypothesis makes its table of characters.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

ROOT = Path(__file__).resolve().parents[1]

# Their tests share a swarm, which some of them change, or something else that takes seconds to make.
TOGETHER = {
    "tests/architecture/test_imports.py",
    "tests/doctor/test_swarm.py",
    "tests/packaging/test_packaging.py",
    "tests/runtime/test_forkserver.py",
    "tests/simulation/test_recorder.py",
    *(
        f"tests/swarm/test_{name}.py"
        for name in ("dashboard", "faults", "hostile", "lifecycle", "status", "strangers", "terminal")
    ),
}
FORKING = {"test_forkserver.py", "test_sabotage.py"}  # without the marker `swarm`
DEADLINE_S = 60.0  # of an asynchronous test, on a machine that has time
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}


class SwarmsFirst(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives the first worker the tests from the front, where those of swarms are, and the others those from the back.

    A swarm uses what a machine has. Two at once take longer than one after the other: in each, processes train on
    while one of them is late.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        """Return what tests have in common that have to run in one worker: what their file makes, or nothing."""
        file = nodeid.partition("::")[0]
        return file if file in TOGETHER else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:  # noqa: ANN401
    """Schedule single tests, but those that share a swarm as one: else it is set up twice."""
    return SwarmsFirst(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import a part of the files in each worker, and the rest from what the others have kept on disk.

    In a new checkout pytest takes 12 s of a core to rewrite the assertions of all files, and each worker would do it.
    """
    worker: Mapping[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    here, tests = session.config.invocation_params.dir, ROOT / "tests"
    given = [(here / argument.partition("::")[0]).resolve() for argument in session.config.args]
    folders = {tests if tests.is_relative_to(path) else path for path in given}
    files = sorted(file for path in folders if path.is_relative_to(tests) for file in path.rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        # What a file raises is seen when it is collected; one that skips itself raises no Exception.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Exclude the libraries from garbage collection: they are a million objects, and the tests make millions more.

    Most of those go without it, and a simulation is a tenth faster if it is looked for the rest less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(400_000, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that fork processes, those of real swarms, in front. Where nothing can be forked, skip them."""
    if not CAN_FORK:
        for item in filter(_is_forking, items):
            item.add_marker(pytest.mark.skip(reason="needs Linux: its processes are forked"))
    items.sort(key=_is_forking, reverse=True)


def _is_forking(item: pytest.Item) -> bool:
    return item.get_closest_marker("swarm") is not None or item.path.name in FORKING


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Starts processes of one thread without importing torch anew for each: most of a short swarm's time."""
    with ForkServer(environment(threads=1)) as server:
        yield server


@pytest.fixture
def without_collection() -> Iterator[None]:
    """Finalize nothing that earlier tests left: at the bottom of a recursion finalizers fail, and pytest reports it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


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
        async with asyncio.timeout(DEADLINE_S * load_factor()):
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
