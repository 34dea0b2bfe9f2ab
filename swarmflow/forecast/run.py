"""Runs a scenario for a user: shows its progress, prints a summary, and writes files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from swarmflow.errors import ConfigError
from swarmflow.forecast.plot import CREATOR
from swarmflow.forecast.recorder import Recorder
from swarmflow.forecast.simulation import Simulation
from swarmflow.forecast.summary import summary
from swarmflow.images import check_image
from swarmflow.ownership import check_file, is_object_with, starts_with
from swarmflow.page.recording import Recording
from swarmflow.page.serving import check_port, serve_until_stopped
from swarmflow.simulator.report import SimulationReport
from swarmflow.simulator.scenario import Scenario, load

_TRACE = re.compile(rb"\d+\.\d{9} \S+\.\d+ ")  # how a line begins: virtual time in s, NAME.INCARNATION
_VIEW = re.compile(rb'\{"duration_s": ?[\d.e+-]+, ?"frames"')
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write, and the port of the page; None: neither."""

    json: Path | None = None
    trace: Path | None = None
    plot: Path | None = None
    view: Path | None = None
    page_port: int | None = None  # 0: any free one


def main(path: Path, seed: int | None, policy: str | None, outputs: Outputs) -> int:
    """Simulate a scenario. Return 0 where it finished, 1 where it stopped making progress or violated an invariant.

    Where a page is wanted, it is served before the return, until Ctrl-C. Raises ConfigError for a bad scenario, an
    unknown policy, a view of one that has none, or a file that cannot be written; ForeignFileError for an existing file
    that no earlier simulation has written; NetworkError for a port that is taken.
    """
    scenario = load(path)
    _check(outputs)
    console = Console(highlight=False)
    began_s = time.process_time()
    with _line_writer(outputs.trace) as trace:
        chosen_seed = scenario.run.seed if seed is None else seed
        simulation = Simulation(scenario, chosen_seed, policy or scenario.run.policy, trace)
        simulation.world.stopwatch = time.thread_time
        recorder = None if outputs.view is None and outputs.page_port is None else Recorder(simulation)
        report = _run(scenario, simulation)
    cpu_s = time.process_time() - began_s
    for part in summary(report, simulation.world.meter, cpu_s):
        console.print(part, soft_wrap=isinstance(part, str))
    if outputs.json is not None:
        _write(outputs.json, [f"{json.dumps(report.as_json(), indent=1)}\n".encode()])
    if outputs.plot is not None:
        from swarmflow.forecast.plot import plot

        plot(report, outputs.plot)
    if recorder is not None:
        _show(recorder.recording(report), outputs)
    return 0 if report.outcome in ("finished", "duration over") and not report.violations else 1


def _run(scenario: Scenario, simulation: Simulation) -> SimulationReport:
    """Run the simulation, with a progress bar where stderr is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        total = simulation.world.settings.steps
        task = progress.add_task(scenario.run.name, total=total)

        def show(done: int, now_s: float) -> None:
            progress.update(task, completed=done, description=f"{scenario.run.name}: {now_s:,.0f} s pretended")

        simulation.progress = show
        return simulation.run()


def _show(recording: Iterator[bytes], outputs: Outputs) -> None:
    """Write the recording, and serve it."""
    parts = list(recording)
    if outputs.view is not None:
        _write(outputs.view, parts)
    if outputs.page_port is not None:
        asyncio.run(serve_until_stopped(Recording(b"".join(parts)), _HOST, outputs.page_port))


def _check(outputs: Outputs) -> None:
    """Raise ForeignFileError for a file that may not be overwritten, and NetworkError for a port that is taken."""
    if outputs.json is not None:
        check_file(outputs.json, "--json", is_object_with("scenario", "policy", "outcome", "iterations"))
    if outputs.trace is not None:
        check_file(outputs.trace, "--trace", starts_with(_TRACE))
    if outputs.plot is not None:
        check_image(outputs.plot, "--plot", CREATOR)
    if outputs.view is not None:
        check_file(outputs.view, "--view-file", starts_with(_VIEW))
    if outputs.page_port is not None:
        check_port(_HOST, outputs.page_port)


@contextlib.contextmanager
def _line_writer(path: Path | None) -> Iterator[Callable[[str], None] | None]:
    """Yield a function that writes a line to the file; None without a path."""
    if path is None:
        yield None
        return
    try:
        file = path.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    with file:
        yield lambda line: print(line, file=file)


def _write(path: Path, parts: Iterable[bytes]) -> None:
    try:
        with path.open("wb") as file:
            file.writelines(parts)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
