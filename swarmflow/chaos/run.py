"""One run under chaos: follows its steps, causes faults, and waits for its end or reports why it has none."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmflow.chaos.cast import Cast, ChaosError
from swarmflow.chaos.diary import Diary
from swarmflow.chaos.meters import Compute, Meters
from swarmflow.chaos.schedule import Schedule
from swarmflow.chaos.setup import MICROBATCHES, Setup
from swarmflow.chaos.steps import StepLogs
from swarmflow.chaos.trouble import Trouble
from swarmflow.chaos.watch import Seen, Watch
from swarmflow.demo.screen import Screen
from swarmflow.local.swarm import LocalProcess, LocalSwarm

TICK_S = 0.02
STANDSTILL_S = 180.0
END_S = 30.0
STEP_S_MAX = 5.0
# What computes a hop's forward; a backward alone repeats nothing.
PASSES = ("forward", "loss", "undo", "recompute")  # a `replay` is a backward pass whose graph was not kept


@dataclass(frozen=True)
class ChaosOutcome:
    """A run that has finished."""

    seconds: float
    commits: int  # more than its steps where some were repeated after a roll-back
    counts: Counter[str]  # of faults, by name
    repairs: dict[str, float]  # of the swarm, by name
    hops: float  # computed beyond one for each microbatch and stage of each step
    compute: Compute
    final: Path  # the exported model
    losses: dict[int, float]  # by step


class ChaosRun:
    """Drives one swarm. Give it to `complete` inside the swarm's `with` block."""

    def __init__(self, swarm: LocalSwarm, setup: Setup, schedule: Schedule, screen: Screen) -> None:
        self._swarm, self._setup, self._schedule, self._screen = swarm, setup, schedule, screen
        self._meters = Meters()
        self._cast = Cast(swarm, self._meters)
        self._logs = StepLogs()
        self._troubles: list[Trouble] = []
        self._progress_s = time.monotonic()
        self._asked_after_s = 0.0

    def complete(self) -> ChaosOutcome:
        """Follow the run until it has ended by itself. Raises SwarmflowError when it does not, or a process fails."""
        diary = Diary(self._swarm.folder / "chaos.log", lambda line: self._screen.say(line, "red"))
        try:
            with self._meters:
                self._cast.start(self._setup.trainers, self._setup.peers, self._setup.stages)
                with Watch(self._swarm.invite) as watch:
                    while not self._is_finished():
                        self._tick(time.monotonic(), watch, diary)
                        time.sleep(TICK_S)
                    self._let_end(diary)
            return self._ended(diary)
        finally:
            diary.close()

    def _tick(self, now: float, watch: Watch, diary: Diary) -> None:
        for step in self._logs.read([self._swarm.json_file(trainer.name) for trainer in self._swarm.trainers]):
            self._progress_s = now
            self._committed(step, diary)
            if not self._troubles and step["version"] < self._setup.steps and watch.seen is not None:
                self._open(step, now, watch.seen, diary)
        for trouble in self._troubles:
            trouble.tick(now, watch.seen)
        self._troubles = [trouble for trouble in self._troubles if not trouble.over]
        self._check_processes()
        if watch.failure is not None:
            raise watch.failure
        if now - self._progress_s > STANDSTILL_S:
            raise ChaosError(self._standstill(watch.seen))

    def _committed(self, step: dict[str, Any], diary: Diary) -> None:
        diary.step = step["version"]
        self._screen.show(step)
        if step["microbatches"] != MICROBATCHES:
            raise ChaosError(f"step {step['step']} was committed with {step['microbatches']} microbatches")
        if step["version"] == self._setup.steps:
            self._meters.read_all()  # while the model is written: the values include the peers' last step

    def _open(self, step: dict[str, Any], now: float, seen: Seen, diary: Diary) -> None:
        """Draw the faults of a step that opens; all victims of earlier faults are back."""
        faults = self._schedule.at_opening(step["version"], self._cast.serving(seen))
        step_s = min(step["seconds"], STEP_S_MAX)
        self._troubles = [Trouble(fault, now, step_s, self._cast, self._meters, diary) for fault in faults]

    # --- the end ------------------------------------------------------------------------------------------------------

    @property
    def _final(self) -> Path:
        return self._swarm.output / "final"

    def _is_finished(self) -> bool:
        """Whether the model is written and a trainer has ended after that."""
        return self._final.is_dir() and any(trainer.exit_code == 0 for trainer in self._swarm.trainers)

    def _let_end(self, diary: Diary) -> None:
        """Wait until the processes have learnt that the run is over, but for those that were away or are starting."""
        deadline_s = time.monotonic() + END_S
        for process in self._swarm.processes:
            if process.exit_code is None and process.expendable:
                process.send(signal.SIGCONT)
        away = {trouble.process.name for trouble in self._troubles}
        signalled = [process for process in self._swarm.processes if process.name not in away]
        while any(process.exit_code is None for process in signalled) and time.monotonic() < deadline_s:
            self._check_processes()
            time.sleep(TICK_S)
        left = [process.name for process in self._swarm.processes if process.exit_code is None]
        diary.note(f"the run is over; still running: {', '.join(left) or 'nobody'}")

    def _ended(self, diary: Diary) -> ChaosOutcome:
        compute, setup = self._meters.compute(), self._setup
        total = self._meters.sum
        hops = sum(total("swarmflow_microbatches_total", direction=direction) for direction in PASSES)
        repairs = self._meters.by_label("swarmflow_decisions_total", "kind")
        repairs["resent"] = total("swarmflow_retries_total", reason="gone")
        repairs["suspected"] = total("swarmflow_suspected_total")
        return ChaosOutcome(
            seconds=diary.seconds,
            commits=len(self._logs.commits),
            counts=diary.counts,
            repairs=repairs,
            hops=hops - setup.steps * setup.stages * MICROBATCHES,
            compute=compute,
            final=self._final,
            losses=self._logs.losses(),
        )

    # --- what may go wrong --------------------------------------------------------------------------------------------

    def _check_processes(self) -> None:
        """Check that no process ends before the run does, but by the signal of a fault."""
        cared_for = {trouble.process.name for trouble in self._troubles}
        newest = self._logs.newest
        fine = [None, 0] if newest is not None and newest["version"] >= self._setup.steps else [None]
        for process in self._swarm.processes:
            code = process.exit_code
            hit = process.expendable and code in (0, -signal.SIGKILL)
            if process.name not in cared_for and code not in fine and not hit:
                raise _failed(process)

    def _standstill(self, seen: Seen | None) -> str:
        newest = self._logs.newest
        after = f"after step {newest['step']}" if newest is not None else "and none before"
        waits = f"the run waits for {seen.waiting_for}" if seen is not None else "no leader was ever seen"
        if seen is not None and time.monotonic() - seen.at_s > STANDSTILL_S / 2:
            waits = f"nobody leads; {waits} when a leader was last seen"
        troubles = ", ".join(map(str, self._troubles)) or "no fault"
        return f"no step for {STANDSTILL_S:.0f} s {after}: {waits}; under way: {troubles}"


def _failed(process: LocalProcess) -> ChaosError:
    error = ChaosError(f"{process.name} ended with exit code {process.exit_code}")
    error.add_note(process.tail())
    return error
