"""A simulated computer of a baseline: one task at a time, backward passes before forward passes."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from swarmflow.baselines.messages import Trip
from swarmflow.simulator.causes import COMPUTE
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.measure import Meter, Spent

_URGENCY = {"update": 0, "backward": 1, "loss": 2, "forward": 2}


@dataclass(slots=True)
class Computer:
    """Computes tasks of `seconds(work)` each, in the order in which swarmflow computes them."""

    clock: Clock
    meter: Meter
    seconds: Callable[[str], float]
    alive: bool = field(init=False, default=True)
    spent: Spent = field(init=False, default_factory=Spent)
    # A heap of (urgency, index of the microbatch, number of the task, work, microbatch, what to call when it is done).
    _queue: list[tuple[int, int, int, str, Trip | None, Callable[[], None]]] = field(init=False, default_factory=list)
    _queued: int = field(init=False, default=0)  # tasks that were ever queued
    _since_s: float | None = field(init=False, default=None)  # when the current task began

    def add(self, work: str, trip: Trip | None, done: Callable[[], None]) -> None:
        """Compute `forward`, `loss` or `backward` of a microbatch, or the `update`, and call `done`."""
        self._queued += 1
        index = -1 if trip is None else trip.index
        heapq.heappush(self._queue, (_URGENCY[work], index, self._queued, work, trip, done))
        if self._since_s is None:
            self._begin()

    def drop(self, trip: Trip | None = None) -> None:
        """Cancel the tasks of this microbatch (None: all tasks) that have not begun."""
        self._queue = [entry for entry in self._queue if trip is not None and entry[4] != trip]
        heapq.heapify(self._queue)

    def die(self) -> None:
        """Stop: what was computed and not learnt is lost."""
        self.alive = False
        self.spent.die(self._part_s(), self.meter)
        self._since_s = None

    @property
    def busy_s(self) -> float:
        """How long it has computed in its life."""
        return self.spent.busy_s + self._part_s()

    def _part_s(self) -> float:
        return 0.0 if self._since_s is None else self.clock.now_s - self._since_s

    def _begin(self) -> None:
        if self._queue:
            _, index, _, work, _, done = heapq.heappop(self._queue)
            seconds = self.seconds(work)
            self._since_s = self.clock.now_s
            self.clock.after(seconds, partial(self._end, work, index, seconds, done), COMPUTE)

    def _end(self, work: str, index: int, seconds: float, done: Callable[[], None]) -> None:
        if not self.alive:
            return
        self._since_s = None
        self.spent.add(work, 0, index, seconds)
        done()
        if self._since_s is None:  # `done` may have begun the next task
            self._begin()
