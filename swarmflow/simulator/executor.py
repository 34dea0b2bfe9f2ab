"""The executor of a pretended device: it computes one thing at a time, the most urgent first, and takes time for it."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from swarmflow.core.protocol.actions import Apply, RunBackward, RunForward, RunLoss, RunReplay
from swarmflow.core.protocol.types import Microbatch, ProcessId
from swarmflow.simulator.causes import COMPUTE
from swarmflow.simulator.measure import Spent

if TYPE_CHECKING:
    from swarmflow.simulator.device import Device
    from swarmflow.simulator.world import World

SLOWNESS = 30.0  # how many times as long a computation takes on a slow device
Computing = RunForward | RunLoss | RunBackward | RunReplay | Apply
# As in the runtime: an earlier step goes first, a gradient before an activation, and of each kind the first ones.
_URGENCY: dict[type, int] = {Apply: 0, RunBackward: 1, RunReplay: 1, RunLoss: 2, RunForward: 2}
_WORK: dict[type, str] = {
    Apply: "update",
    RunBackward: "backward",
    RunReplay: "replay",
    RunLoss: "loss",
    RunForward: "forward",
}


def _purpose(action: Computing) -> str:
    """Return what the seconds count as in `Spent`: "again" is what exists already, or what is undone."""
    match action:
        case RunReplay(weight=1):
            return "replay"
        case RunReplay() | RunForward(again=True):
            return "again"
    return _WORK[type(action)]


def _place(action: Computing) -> tuple[int, int]:
    """Return the step that it is for, and the index of its microbatch, -1: of none."""
    if isinstance(action, Apply):
        return action.epoch.step, -1
    return action.microbatch.epoch.step, action.microbatch.index


@dataclass(slots=True)
class Executor:
    """Computes for a device in virtual time. The device delivers the result of what is still wanted at its end."""

    device: Device
    world: World = field(init=False)
    process: ProcessId = field(init=False)
    slow_until_s: float = field(init=False, default=0.0)  # until then it takes SLOWNESS times as long
    busy_since_s: float | None = field(init=False, default=None)  # None: it is idle
    spent: Spent = field(init=False, default_factory=Spent)
    # A heap: step, urgency, index of the microbatch, sequence number, action; run and discards at submission.
    _queue: list[tuple[int, int, int, int, Computing, int, int]] = field(init=False, default_factory=list)
    _submitted: int = field(init=False, default=0)  # actions so far
    _discards: Counter[Microbatch] = field(init=False, default_factory=Counter)  # how often each was discarded
    _run: int = field(init=False, default=0)  # what was submitted in an earlier run is not wanted any more

    def __post_init__(self) -> None:
        self.world, self.process = self.device.world, self.device.process

    def submit(self, action: Computing) -> None:
        """Queue a computation, and begin it where the executor is idle."""
        self._submitted += 1
        discards = 0 if isinstance(action, Apply) else self._discards[action.microbatch]
        (step, index), urgency = _place(action), _URGENCY[type(action)]
        heapq.heappush(self._queue, (step, urgency, index, self._submitted, action, self._run, discards))
        if self.busy_since_s is None:
            self._begin()

    def discard(self, microbatch: Microbatch) -> None:
        """Drop what has been submitted of a microbatch."""
        self._discards[microbatch] += 1

    def reset(self) -> None:
        """Drop all that has been submitted."""
        self._run += 1
        self._discards.clear()

    def die(self) -> None:
        """Count what was computed and not committed as lost."""
        self.spent.die(self._part_s(), self.world.meter)
        self.busy_since_s = None

    @property
    def busy_s(self) -> float:
        """Seconds that it has computed in its life, whatever for."""
        return self.spent.busy_s + self._part_s()

    def _part_s(self) -> float:
        return 0.0 if self.busy_since_s is None else self.world.clock.now_s - self.busy_since_s

    def _begin(self) -> None:
        """Begin the most urgent computation that is still wanted."""
        while self._queue:
            *_, action, run, discards = heapq.heappop(self._queue)
            if self._wanted(action, run, discards):
                stage = self.device.stage_weights().stage
                seconds = self.world.hardware.compute_s(self.process.name, stage, _WORK[type(action)])
                if self.world.clock.now_s < self.slow_until_s:
                    seconds *= SLOWNESS
                self.busy_since_s = self.world.clock.now_s
                self.world.clock.after(seconds, partial(self._end, action, run, discards, seconds), COMPUTE)
                return

    def _end(self, action: Computing, run: int, discards: int, seconds: float) -> None:
        if not self.world.alive(self.process):
            return
        self.busy_since_s = None
        self.spent.add(_purpose(action), *_place(action), seconds)
        if self._wanted(action, run, discards):
            self.device.finish(action)
        if self.busy_since_s is None:  # what followed from it may have begun the next
            self._begin()

    def _wanted(self, action: Computing, run: int, discards: int) -> bool:
        return run == self._run and (isinstance(action, Apply) or discards == self._discards[action.microbatch])
