"""A fork server whose processes write down, at their end, what they did and what it took: see README.md.

Seconds are of CPU time of the thread that worked, so that what else the machine does counts for nothing; those of the
edges are of the clock, and so is what they are compared with (BY_CLOCK).
"""

from __future__ import annotations

import functools
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any

import torch
from prometheus_client import Counter, Gauge, Histogram

from swarmflow import cli
from swarmflow.compute.adamw_kernel import AdamWKernel, adamw_kernel
from swarmflow.compute.flat_tensors import piece_sums
from swarmflow.compute.stage_state import StageState
from swarmflow.compute.state_root import PIECE_ELEMENTS
from swarmflow.compute.update_checksums import UpdateChecksums
from swarmflow.core.commit.step import Step
from swarmflow.core.commit.step_members import StepMembers
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.local import forkserver
from swarmflow.page.server import PageServer
from swarmflow.runtime.execution import driver, served, step_end
from swarmflow.runtime.execution.metrics import Labelled
from swarmflow.runtime.execution.signatures import Signatures
from swarmflow.runtime.execution.summary import PeerReport
from swarmflow.runtime.execution.worker import Worker
from swarmflow.runtime.operations import answering
from trainers.answers import TrainerAnswers

FILE = "account.json"
_KERNEL_ELEMENTS = 1 << 22  # 64 MiB with moments and gradient: more than a cache
WATCHING = "watching"
BY_CLOCK = ", by the clock"  # ends the names of the same entries with the time that passed meanwhile
_seconds: dict[str, float] = defaultdict(float)
_calls: dict[str, int] = defaultdict(int)
_edge: dict[int, float] = {}
_inside = threading.local()  # for each entry, whether this thread works on it already


@contextmanager
def _counted(entry: str) -> Iterator[None]:
    """Add the time of a block to an entry, unless a block around it is counted there."""
    if getattr(_inside, entry, False):
        yield
        return
    setattr(_inside, entry, True)
    began_s, clock_s = time.thread_time(), time.monotonic()
    try:
        yield
    finally:
        _seconds[entry] += time.thread_time() - began_s
        _seconds[entry + BY_CLOCK] += time.monotonic() - clock_s
        _calls[entry] += 1
        setattr(_inside, entry, False)


def _timed(work: Callable[..., object], entry: str) -> Callable[..., object]:
    @functools.wraps(work)
    def timed(*args: object, **kwargs: object) -> object:
        with _counted(entry):
            return work(*args, **kwargs)

    return timed


def _account_for(owner: object, name: str, entry: str) -> None:
    setattr(owner, name, _timed(getattr(owner, name), entry))


class _Steps(Awaitable[Any]):
    """A coroutine of which only its own steps are counted, and not what the loop does while it waits."""

    def __init__(self, coroutine: Generator[Any, Any, Any], entry: str) -> None:
        self._coroutine = coroutine
        self._entry = entry

    def __await__(self) -> Generator[Any, Any, Any]:
        resume, given = self._coroutine.send, None
        while True:
            try:
                with _counted(self._entry):
                    waits_for = resume(given)
            except StopIteration as done:
                return done.value
            try:
                given, resume = (yield waits_for), self._coroutine.send
            except BaseException as error:  # such as a timeout, which the coroutine itself handles
                given, resume = error, self._coroutine.throw


def _account_for_coroutine(owner: object, name: str, entry: str) -> None:
    work: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(work)
    async def timed(*args: object, **kwargs: object) -> object:
        return await _Steps(work(*args, **kwargs), entry)

    setattr(owner, name, timed)


def _account_for_watching() -> None:
    """Time everything that is done for those who watch: metrics, summaries, the page and the answers about a run."""
    for metric in (Counter, Gauge, Histogram):
        for change in ("inc", "dec", "set", "observe"):
            if hasattr(metric, change):
                _account_for(metric, change, WATCHING)
    _account_for(Labelled, "at", WATCHING)
    _account_for(ThreadingMixIn, "process_request_thread", WATCHING)
    _account_for(PeerReport, "summary", WATCHING)
    _account_for(TrainerAnswers, "_report", WATCHING)
    _account_for_coroutine(PageServer, "_serve", WATCHING)
    _account_for_coroutine(answering._Desk, "serve", WATCHING)


def _account_for_workers(owner: object, name: str) -> None:
    """What is submitted to a worker is timed where it runs."""
    submit: Callable[..., None] = getattr(owner, name)

    def submitted(worker: object, priority: object, work: Callable[..., object], done: Callable[..., object]) -> None:
        inner = [cell.cell_contents for cell in work.__closure__ or ()]  # a step's end is timed by a function around it
        names = [getattr(each, "__qualname__", "") for each in (work, *inner)]
        ends_step = any(name.startswith(("StepEnd.seal", "StepEnd.apply")) for name in names)
        submit(worker, priority, _timed(work, "update" if ends_step else "work"), done)

    setattr(owner, name, submitted)


def _account_for_edges() -> None:
    """Time what lies between the end of a step's work and the opening of the next step."""
    end, begin = Step.prepare, StepMembers.open

    def ended(step: Step, *given: object) -> object:
        _edge[step.epoch.step] = -time.monotonic()
        return end(step, *given)  # type: ignore[arg-type]

    def began(members: StepMembers, *given: object) -> object:
        step = members.open_step.epoch.step
        if step - 1 in _edge:
            _edge[step - 1] += time.monotonic()
        return begin(members, *given)  # type: ignore[arg-type]

    setattr(Step, end.__name__, ended)
    setattr(StepMembers, begin.__name__, began)


def _timing_s() -> float:
    """Return what the timing of a call adds to its own time."""
    empty, calls = _timed(lambda: None, "empty"), 10_000
    for _ in range(calls):
        empty()
    return _seconds.pop("empty") / _calls.pop("empty")


def _share_of_sums() -> float:
    """Return which share of the time of the optimizer's kernel the checksums take that it takes on its way."""
    kernel = adamw_kernel()
    if kernel is None:
        return 0.0  # they are counted where they are taken
    values = [torch.zeros(_KERNEL_ELEMENTS) for _ in range(4)]
    sums = [[piece_sums(each, PIECE_ELEMENTS) for each in values[:3]] for _ in range(2)]

    def seconds(wanted: list[list[torch.Tensor]] | None) -> float:
        began_s = time.thread_time()
        kernel.update(values[:3], values[3], (1.0,) * 10, wanted)
        return time.thread_time() - began_s

    with_sums, without = (min(seconds(wanted) for _ in range(5)) for wanted in (sums, None))
    return max(0.0, 1.0 - without / with_sums)


def _write_at_the_end(owner: object, name: str) -> None:
    run: Callable[[], int] = getattr(owner, name)

    def run_and_write() -> int:
        code = run()
        _seconds["loop"] = time.thread_time()
        timing_s = _timing_s()  # many calls take less
        for entry, calls in _calls.items():
            _seconds[entry] -= calls * timing_s
        share = _share_of_sums() if _calls["kernel"] else 0.0
        for clock in ("", BY_CLOCK):
            _seconds["digests" + clock] += share * _seconds["kernel" + clock]
        _seconds["edges"] = sum(seconds for seconds in _edge.values() if seconds > 0)
        folder = Path(sys.argv[sys.argv.index("--state-dir") + 1])
        (folder / FILE).write_text(json.dumps(_seconds), encoding="utf-8")
        return code

    setattr(owner, name, run_and_write)


if __name__ == "__main__":
    for machine in (PeerMachine, TrainerMachine):
        _account_for(machine, "handle", "decisions")
    for function in ("encode_header", "decode_header"):
        _account_for(driver, function, "messages")
    for function in ("signed", "checked", "with_proofs", "proven"):
        _account_for(Signatures, function, "signatures")
    _account_for(step_end, "digest_of_pieces", "digests")
    for function in ("hash", "_hash_made", "keep_checksums"):
        _account_for(served.Served, function, "hashes")
    for owner, function in (
        (served.Served, "weights_are_intact"),
        (served.Served, "_begin_change"),
        (StageState, "piece_sums"),
        (UpdateChecksums, "_take"),
    ):
        _account_for(owner, function, "digests")
    _account_for(AdamWKernel, "update", "kernel")
    _account_for_workers(Worker, "submit")
    _account_for_edges()
    _account_for_watching()
    _write_at_the_end(cli, "main")
    forkserver.main()
