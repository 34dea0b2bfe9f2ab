"""A simulated computer of a baseline: one task at a time, backward passes first, else what came first."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from swarmflow.baselines.machine import BaselineTask
from swarmflow.baselines.messages import Trip
from swarmflow.core.protocol.actions import DEFERRED_MIN
from swarmflow.core.routing.smoothing import smoothed
from swarmflow.simulator.causes import COMPUTE
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.measure import Meter, Spent

_URGENCY = {"update": 0, "backward": 1, "replay": 1, "loss": 2, "forward": 2}


@dataclass(slots=True, eq=False)
class QueuedTask:
    """A task that waits, runs, or of which a part is done."""

    task: BaselineTask
    share: float  # of its time, that is left when the gradient of the input is there; 0: it is computed in one part
    wanted: bool = field(init=False, default=True)  # it was not dropped
    rest: bool = field(init=False, default=False)  # only the gradients of the parameters are left of it


@dataclass(slots=True)
class Computer:
    """Computes tasks of `seconds(work)` each. The rest of a pass in two parts comes last, as in swarmflow."""

    clock: Clock
    meter: Meter
    seconds: Callable[[str], float]
    weights_share: Callable[[str], float]  # of a work's time, that is left when the gradient of the input is there
    alive: bool = field(init=False, default=True)
    spent: Spent = field(init=False, default_factory=Spent)
    forward_s: float | None = field(init=False, default=None)  # smoothed, of the forward passes so far
    _queue: list[tuple[int, int, QueuedTask]] = field(
        init=False, default_factory=list
    )  # a heap of (urgency, number, task)
    _deferred: list[QueuedTask] = field(init=False, default_factory=list)  # of which the rest is left, the oldest first
    _deferred_max: int = field(init=False, default=DEFERRED_MIN)
    _queued: int = field(init=False, default=0)  # tasks that were ever queued
    _current: QueuedTask | None = field(init=False, default=None)
    _since_s: float = field(init=False, default=0.0)  # when the current task began

    def add(self, task: BaselineTask) -> None:
        """Compute a task when its turn comes."""
        self._deferred_max = DEFERRED_MIN + task.room
        self._queued += 1
        whole = task.given is None or task.work == "replay"
        queued = QueuedTask(task, 0.0 if whole else self.weights_share(task.work))
        heapq.heappush(self._queue, (_URGENCY[task.work], self._queued, queued))
        self._begin()

    def drop(self, trip: Trip | None = None) -> None:
        """Cancel the tasks of this microbatch (None: all tasks) that have not begun, and what is left of others."""
        self._queue = [entry for entry in self._queue if trip is not None and entry[2].task.trip != trip]
        heapq.heapify(self._queue)
        self._deferred = [each for each in self._deferred if trip is not None and each.task.trip != trip]
        if self._current is not None and (trip is None or self._current.task.trip == trip):
            self._current.wanted = False

    def die(self) -> None:
        """Stop: what was computed and not learnt is lost."""
        self.alive = False
        self.spent.die(self._part_s(), self.meter)
        self._current = None

    @property
    def busy_s(self) -> float:
        """How long it has computed in its life."""
        return self.spent.busy_s + self._part_s()

    def _part_s(self) -> float:
        return 0.0 if self._current is None else self.clock.now_s - self._since_s

    def _begin(self) -> None:
        """Begin the most urgent task, if none runs; where too many are unfinished, the oldest of those."""
        if self._current is not None or not (self._queue or self._deferred):
            return
        rest = len(self._deferred) > self._deferred_max or not self._queue
        queued = self._deferred.pop(0) if rest else heapq.heappop(self._queue)[2]
        seconds = self.seconds(queued.task.work) * (queued.share if queued.rest else 1.0 - queued.share)
        self._current, self._since_s = queued, self.clock.now_s
        self.clock.after(seconds, partial(self._end, queued, seconds), COMPUTE)

    def _end(self, queued: QueuedTask, seconds: float) -> None:
        if not self.alive:
            return
        self._current, task = None, queued.task
        index = -1 if task.trip is None else task.trip.index
        work = "weights" if queued.rest else task.work
        self.spent.add(work if queued.wanted else "again", 0, index, seconds)
        if task.work == "forward":
            self.forward_s = smoothed(self.forward_s, seconds)
        if queued.share and not queued.rest and task.given is not None:
            queued.rest = True
            if queued.wanted:
                self._deferred.append(queued)
            task.given()
        else:
            task.done()
        self._begin()
