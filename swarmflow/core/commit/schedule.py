"""The learning rate of a step, a pure function of the run's settings and the step's number."""

from __future__ import annotations

import math
from typing import Protocol


class ScheduleSettings(Protocol):
    """What the schedule needs of RUN.toml's [optimizer]."""

    @property
    def lr(self) -> float: ...
    @property
    def schedule(self) -> str: ...
    @property
    def warmup_steps(self) -> int: ...


def learning_rate(optimizer: ScheduleSettings, steps: int, step: int) -> float:
    """The learning rate of the update of step `step` (from 0) in a run of `steps` steps.

    As `transformers.get_scheduler` does it, so that a plain torch loop with it uses the same rates: the warmup goes
    linearly from 0 at step 0 to lr at step `warmup_steps`; then "constant" stays, "linear" and "cosine" (half a wave)
    fall to 0 at step `steps`, which is the first step that is not made.

    Raises ValueError for an unknown schedule or a step that is not one of the run's.
    """
    if not 0 <= step < steps:
        raise ValueError(f"step {step} is not in a run of {steps} steps")
    warmup = optimizer.warmup_steps
    if step < warmup:
        return optimizer.lr * step / warmup
    remaining = (steps - step) / (steps - warmup)
    match optimizer.schedule:
        case "constant":
            return optimizer.lr
        case "linear":
            return optimizer.lr * remaining
        case "cosine":
            return optimizer.lr * 0.5 * (1.0 + math.cos(math.pi * (1.0 - remaining)))
        case unknown:
            raise ValueError(f"unknown schedule {unknown!r}")
