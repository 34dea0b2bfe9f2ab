"""A stage in memory, and what belongs to it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from torch import Tensor

from swarmflow.compute.optimizer import Optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import Stage
from swarmflow.compute.stage_state import StageState


@dataclass
class Served:
    """A stage in memory. version: of its weights. reduced: summed gradients of a ballot, by flat group."""

    stage: Stage
    runner: StageRunner
    optimizer: Optimizer
    state: StageState
    version: int
    reduced: dict[str, Tensor] = field(default_factory=dict)

    def clock(self) -> float:
        """On a CPU the thread's own time: a process that is frozen, or waits for its turn, does not compute."""
        return time.thread_time() if self.stage.device.type == "cpu" else time.monotonic()
