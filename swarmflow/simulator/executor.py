"""The executor of a pretended device: it computes one thing at a time, the most urgent first, and takes time for it."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from swarmflow.core.protocol.actions import DEFERRED_MIN, Apply, RunBackward, RunForward, RunLoss, RunReplay
from swarmflow.core.protocol.types import Microbatch, ProcessId
from swarmflow.simulator.causes import COMPUTE
from swarmflow.simulator.measure import Spent

if TYPE_CHECKING:
    from swarmflow.simulator.device import Device
    from swarmflow.simulator.world import World

SLOWNESS = 30.0  # how many times as long a computation takes on a slow device


@dataclass(frozen=True, slots=True)
class RunWeights:
    """The rest of a pass, of which the gradient of the input is there: the gradients of the parameters."""

    of: RunLoss | RunBackward
    share: float  # of the time of the whole pass

    @property
    def microbatch(self) -> Microbatch:
        """The microbatch."""
        return self.of.microbatch


Computing = RunForward | RunLoss | RunBackward | RunReplay | RunWeights | Apply
# As in the runtime: an earlier step goes first, an activation before a gradient, what nobody waits for last, and of
# each kind what came first.
_URGENCY: dict[type, int] = {Apply: 0, RunLoss: 1, RunForward: 1, RunBackward: 2, RunReplay: 2, RunWeights: 3}
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
        case RunWeights():
            return "weights"
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
    # A heap: step, urgency, sequence number, action; run and discards at submission.
    _queue: list[tuple[int, int, int, Computing, int, int]] = field(init=False, default_factory=list)
    _submitted: int = field(init=False, default=0)  # actions so far
    _discards: Counter[Microbatch] = field(init=False, default_factory=Counter)  # how often each was discarded
    # What is left of passes, with run and discards, the oldest first. It is in the queue too.
    _deferred: dict[Microbatch, tuple[RunWeights, int, int]] = field(init=False, default_factory=dict)
    _deferred_max: int = field(init=False, default=DEFERRED_MIN)
    _run: int = field(init=False, default=0)  # what was submitted in an earlier run is not wanted any more

    def __post_init__(self) -> None:
        self.world, self.process = self.device.world, self.device.process

    def submit(self, action: Computing) -> None:
        """Queue a computation, and begin it where the executor is idle."""
        if not isinstance(action, RunWeights | Apply) and action.deferred_max is not None:
            self._deferred_max = action.deferred_max
        self._queue_up(action, 0 if isinstance(action, Apply) else self._discards[action.microbatch])
        if self.busy_since_s is None:
            self._begin()

    def _queue_up(self, action: Computing, discards: int) -> None:
        self._submitted += 1
        (step, _), urgency = _place(action), _URGENCY[type(action)]
        heapq.heappush(self._queue, (step, urgency, self._submitted, action, self._run, discards))

    def discard(self, microbatch: Microbatch) -> None:
        """Drop what has been submitted of a microbatch."""
        self._discards[microbatch] += 1
        self._deferred.pop(microbatch, None)

    def reset(self) -> None:
        """Drop all that has been submitted."""
        self._run += 1
        self._discards.clear()
        self._deferred.clear()

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
        """Begin the most urgent computation that is still wanted; where too many passes are unfinished, the oldest."""
        if len(self._deferred) > self._deferred_max:
            self._run_one(*next(iter(self._deferred.values())))
            return
        while self._queue:
            *_, action, run, discards = heapq.heappop(self._queue)
            finished = isinstance(action, RunWeights) and action.microbatch not in self._deferred
            if self._wanted(action, run, discards) and not finished:
                self._run_one(action, run, discards)
                return

    def _run_one(self, action: Computing, run: int, discards: int) -> None:
        if isinstance(action, RunWeights):
            del self._deferred[action.microbatch]
        seconds = self._seconds(action)
        self.busy_since_s = self.world.clock.now_s
        self.world.clock.after(seconds, partial(self._end, action, run, discards, seconds), COMPUTE)

    def _seconds(self, action: Computing) -> float:
        """Return what it takes; of a pass in two parts, the first one."""
        whole = action.of if isinstance(action, RunWeights) else action
        stage = self.device.stage_weights().stage
        seconds = self.world.hardware.compute_s(self.process.name, stage, _WORK[type(whole)])
        seconds *= action.share if isinstance(action, RunWeights) else 1.0 - self._weights_share(action)
        return seconds * SLOWNESS if self.world.clock.now_s < self.slow_until_s else seconds

    def _weights_share(self, action: Computing) -> float:
        """Return the part of a pass that is left when the gradient of the input is there; 0: it has no such part."""
        if not isinstance(action, RunLoss | RunBackward) or self.device.stage_weights().stage == 0:
            return 0.0
        return self.world.hardware.weights_share(self.process.name, _WORK[type(action)])

    def _end(self, action: Computing, run: int, discards: int, seconds: float) -> None:
        if not self.world.alive(self.process):
            return
        self.busy_since_s = None
        self.spent.add(_purpose(action), *_place(action), seconds)
        if self._wanted(action, run, discards):
            self._finish(action, run, discards)
        if self.busy_since_s is None:  # what followed from it may have begun the next
            self._begin()

    def _finish(self, action: Computing, run: int, discards: int) -> None:
        """Deliver a result, and compute, now or later, what is left of a pass."""
        share = self._weights_share(action)
        if not share:
            self.device.finish(action)
            return
        assert isinstance(action, RunLoss | RunBackward), "others are of one part"
        rest = RunWeights(action, share)
        if self.device.results.deliver_input_gradient(action) and self._wanted(rest, run, discards):
            self._deferred[action.microbatch] = (rest, run, discards)
            self._queue_up(rest, discards)

    def _wanted(self, action: Computing, run: int, discards: int) -> bool:
        return run == self._run and (isinstance(action, Apply) or discards == self._discards[action.microbatch])
