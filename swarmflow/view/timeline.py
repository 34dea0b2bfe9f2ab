"""The timeline of a run: its events and its steps, as one process has recorded them, bounded in memory."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swarmflow.core.protocol.actions import Log
from swarmflow.core.protocol.timeline import EventKind

EVENTS_MAX = 2000
STEPS_MAX = 20_000  # of a longer history every second step is dropped, the newest kept
ANSWER_STEPS_MAX = 5000  # steps in one answer; whoever wants more asks again
RATE_STEPS = 20  # of which the time left is estimated

Event = dict[str, Any]
StepLine = Mapping[str, Any]


@dataclass(slots=True)
class Timeline:
    """Events with consecutive numbers, and the steps that were committed, numbered too. docs/view.md describes both.

    Times are seconds since 1970 where a process records them, and virtual seconds in a simulation.
    """

    name: str = ""  # tells the timelines of successive leaders apart
    events: deque[Event] = field(init=False, default_factory=lambda: deque(maxlen=EVENTS_MAX))
    steps: list[StepLine] = field(init=False, default_factory=list)
    _step_numbers: itertools.count[int] = field(init=False, default_factory=lambda: itertools.count(1))
    _numbers: itertools.count[int] = field(init=False, default_factory=lambda: itertools.count(1))
    _waiting: tuple[str, float] = field(init=False, default=("", 0.0))  # the reason, and since when

    def log(self, action: Log, step: int, now_s: float) -> None:
        """Record a line of a machine's log, if it is an event of the run."""
        if action.kind is not None:
            process = "" if action.process is None else str(action.process)
            self.add(action.kind, action.text, step, now_s, level=action.level, peer=process, stage=action.stage)

    def add(
        self,
        kind: EventKind,
        text: str,
        step: int,
        now_s: float,
        *,
        level: str = "info",
        peer: str = "",
        stage: int = -1,
    ) -> None:
        """Record an event."""
        self.events.append(
            {
                "seq": self.next_number(),
                "time": now_s,
                "kind": str(kind),
                "level": level,
                "text": text,
                "peer": peer,
                "stage": stage,
                "step": step,
            }
        )

    def next_number(self) -> int:
        """Return the number of the next event, and count on."""
        return next(self._numbers)

    def committed(self, line: StepLine) -> None:
        """Record a committed step, as a line of docs/json-log.md; it replaces those that a roll-back has undone."""
        while self.steps and self.steps[-1]["step"] >= line["step"]:
            self.steps.pop()
        self.steps.append({**line, "seq": next(self._step_numbers)})
        if len(self.steps) > STEPS_MAX:
            # Validation is rare: a curve of it would lose most of its points, or all.
            older, newer = self.steps[: -STEPS_MAX // 2], self.steps[-STEPS_MAX // 2 :]
            kept = [line for number, line in enumerate(older) if number % 2 or line.get("validation_loss") is not None]
            self.steps = [*(kept if len(kept) < len(older) else older[1::2]), *newer]

    def wait(self, reason: str, step: int, now_s: float) -> float:
        """Record what the run waits for, empty: nothing; return for how long it has waited for that, in seconds.

        Numbers in the reason are its progress, and make no other reason of it.
        """
        known, since_s = self._waiting
        if _without_numbers(known) != _without_numbers(reason):
            since_s = now_s
            if reason:
                self.add(EventKind.WAITING, f"the run waits for {reason}", step, now_s)
        self._waiting = (reason, since_s)
        return now_s - since_s if reason else 0.0

    def events_after(self, number: int) -> list[Event]:
        """Return the events with later numbers, in order."""
        newer = itertools.takewhile(lambda event: event["seq"] > number, reversed(self.events))
        return list(newer)[::-1]

    def steps_after(self, number: int) -> list[StepLine]:
        """Return the steps with later numbers, in order, ANSWER_STEPS_MAX at most."""
        newer = list(itertools.takewhile(lambda line: line["seq"] > number, reversed(self.steps)))[::-1]
        return newer[:ANSWER_STEPS_MAX]

    def left_s(self, steps: int) -> float | None:
        """Return the expected time until so many steps are committed, in seconds; None: too little is known."""
        last = self.steps[-RATE_STEPS:]
        if len(last) < 2 or last[-1]["step"] <= last[0]["step"]:
            return None
        step_s: float = (last[-1]["time"] - last[0]["time"]) / (last[-1]["step"] - last[0]["step"])
        return float(max(0.0, step_s * (steps - last[-1]["step"] - 1)))


def _without_numbers(text: str) -> str:
    return "".join(character for character in text if not character.isdigit())
