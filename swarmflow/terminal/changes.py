"""A run as lines, one for each thing that has changed, where there is no terminal to redraw."""

from __future__ import annotations

import re
from collections.abc import Sequence

from swarmflow.terminal.formats import clock, count, duration
from swarmflow.terminal.shown_run import ShownEvent, ShownRun

RECENT = 10  # events before the first look that are worth a line
_NUMBERS = re.compile(r"\d+")


class Changes:
    """Returns the lines for what is new since the last look."""

    def __init__(self) -> None:
        self._run: ShownRun | None = None
        self._event = 0  # number of the last one that was printed
        self._trouble = ""

    def lines(self, run: ShownRun | None, events: Sequence[ShownEvent], trouble: str, now_s: float) -> list[str]:
        """Return them, the oldest first, each with the time at which it was seen, and events with their own.

        trouble: why there is no newer state; empty: the state is new. now_s: since 1970.
        """
        at = clock(now_s)
        found: list[str] = []
        if trouble:
            if trouble != self._trouble:
                found.append(f"{at} no answer: {trouble}; it is asked again")
            self._trouble = trouble
            return found
        if self._trouble:
            found.append(f"{at} the run answers again")
        self._trouble = ""
        if run is None:
            return found
        before = self._run
        if before is None or (run.run, run.steps) != (before.run, before.steps):
            found.append(f"{at} run {run.run}: {run.phase}, {_trainers(run)}")
        new = [event for event in events if event.seq > self._event and event.text]
        found += [f"{clock(event.time)} {event.text}" for event in (new if before is not None else new[-RECENT:])]
        self._event = max([self._event, *(event.seq for event in events)])
        if before is None or _stages(run) != _stages(before):
            found.append(f"{at} peers: {_stages(run)}")
        if before is None or (run.step, run.phase) != (before.step, before.phase):
            found.append(f"{at} {_progress(run)}")
        if _reason(run) and (before is None or _reason(run) != _reason(before)):
            found.append(f"{at} waits for {run.waiting_for}")
        self._run = run
        return found


def _reason(run: ShownRun) -> str:
    """Return what the run waits for, without the numbers, which are its progress."""
    return "" if run.phase == "running" else _NUMBERS.sub("", run.waiting_for)


def _progress(run: ShownRun) -> str:
    parts = [f"{run.phase}, step {count(run.step)} of {count(run.steps)}"]
    if run.loss is not None:
        parts.append(f"loss {run.loss:.4f}")
    if run.tokens_per_s is not None:
        parts.append(f"{count(run.tokens_per_s)} tokens/s")
    if run.left_s is not None:
        parts.append(f"{duration(run.left_s)} left")
    return ", ".join(parts)


def _trainers(run: ShownRun) -> str:
    number = len(run.trainers)
    return f"{number} trainer{'' if number == 1 else 's'}"


def _stages(run: ShownRun) -> str:
    """Return the peers of each stage: `stage 0: 3, stage 1: 2 and 1 loading, stage 2: nobody`."""
    texts = []
    for stage in run.stages:
        working = stage.working
        others = sum(stage.counts().values()) - working
        words = [count(working)] * bool(working) + [f"{count(others)} not serving yet"] * bool(others)
        texts.append(f"stage {stage.stage}: {' and '.join(words) or 'nobody'}")
    return ", ".join(texts)
