"""A stage in memory, with its optimizer and state."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from swarmflow.compute.optimizer import Optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import Stage
from swarmflow.compute.stage_state import StageState
from swarmflow.compute.sums import Sums


@dataclass
class Served:
    """A stage in memory."""

    stage: Stage
    runner: StageRunner
    optimizer: Optimizer
    state: StageState
    version: int  # of its weights
    reduced: dict[str, Sums] = field(default_factory=dict)  # summed gradients of a ballot, by flat group

    def clock(self) -> float:
        """Return the time: on a CPU the thread's own, as a frozen or waiting process does not compute."""
        return time.thread_time() if self.stage.device.type == "cpu" else time.monotonic()
