"""A fork server whose processes write down, at their end, what their bookkeeping took: see bookkeeping.py.

Seconds are of CPU time of the thread that worked, so that what else the machine does counts for nothing; those of the
edge are of the clock.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from swarmflow import cli
from swarmflow.core.commit.step import Step
from swarmflow.core.commit.step_members import StepMembers
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.local import forkserver
from swarmflow.runtime.execution import driver, step_end
from swarmflow.runtime.execution.worker import Worker

FILE = "account.json"
_seconds: dict[str, float] = defaultdict(float)
_edge: dict[int, float] = {}


def _timed(work: Callable[..., object], entry: str) -> Callable[..., object]:
    @functools.wraps(work)
    def timed(*args: object, **kwargs: object) -> object:
        began_s = time.thread_time()
        try:
            return work(*args, **kwargs)
        finally:
            _seconds[entry] += time.thread_time() - began_s

    return timed


def _account_for(owner: object, name: str, entry: str) -> None:
    setattr(owner, name, _timed(getattr(owner, name), entry))


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


def _write_at_the_end(owner: object, name: str) -> None:
    run: Callable[[], int] = getattr(owner, name)

    def run_and_write() -> int:
        code = run()
        _seconds["loop"] = time.thread_time()
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
    _account_for(step_end, "digest", "digests")
    _account_for_workers(Worker, "submit")
    _account_for_edges()
    _write_at_the_end(cli, "main")
    forkserver.main()
