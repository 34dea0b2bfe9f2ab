"""Virtual time: a queue of planned callbacks, in an order that the seed alone decides."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmflow.simulator.causes import BEGINNING, CHANCE, TIMER, Cause

# Time, sequence number, callback, what it waits for (causes.py), and the critical path that it follows from.
Planned = tuple[float, int, Callable[[], object], int, Cause]

SLOTS_PER_S = 256.0  # 10,000 peers plan some 150 callbacks for each slot
FAR_S = 1e12
LOOK_S = 0.002  # how closely phases are watched for; the shortest lasts as long as a message is in flight


@dataclass(slots=True)
class Clock:
    """Runs callbacks in the order of their times; those of one moment in the order in which they were planned.

    Time is divided into slots. The callbacks of the current slot are in a heap, those of a later slot in a plain list:
    a heap of all callbacks would not fit in the computer's caches.
    """

    now_s: float = field(init=False, default=0.0)
    _limit_s: float = field(init=False, default=0.0)  # of the present run
    _heap: list[Planned] = field(init=False, default_factory=list)  # of the current slot
    _slot: int = field(init=False, default=0)  # the number of the current slot
    _slots: list[int] = field(init=False, default_factory=list)  # a heap of the later slots that have callbacks
    _later: dict[int, list[Planned]] = field(init=False, default_factory=dict)  # their callbacks, unsorted
    _planned: int = field(init=False, default=0)  # callbacks so far
    _begun: int = field(init=False, default=0)  # callbacks that have run or are running
    _marked: int = field(init=False, default=0)  # callbacks that had been planned at the last mark
    _mark: Cause = field(init=False, default=BEGINNING)  # the path of those from the last mark on
    _cause: Cause = field(init=False, default=BEGINNING)  # the path of the callback that is running
    _watches: list[Callable[[], bool]] = field(init=False, default_factory=list)
    _look_s: float = field(init=False, default=FAR_S)  # when the watches are called next

    def after(self, delay_s: float, callback: Callable[[], object], why: int = TIMER) -> None:
        """Plan a callback in delay_s (at least 0) from now. why: what it waits for (causes.py)."""
        if delay_s < 0:
            raise ValueError(f"nothing can happen {-delay_s} s ago")
        self.at(self.now_s + delay_s, callback, why)

    def at(self, time_s: float, callback: Callable[[], object], why: int = TIMER) -> None:
        """Plan a callback at a time; one that has passed counts as now. why: what it waits for."""
        self._planned += 1
        if time_s < self.now_s:
            time_s = self.now_s
        planned = (time_s, self._planned, callback, why, self._cause)
        slot = int((time_s if time_s < FAR_S else FAR_S) * SLOTS_PER_S)
        if slot <= self._slot:
            heapq.heappush(self._heap, planned)
        elif (later := self._later.get(slot)) is not None:
            later.append(planned)
        else:
            self._later[slot] = [planned]
            heapq.heappush(self._slots, slot)

    def follow(self, time_s: float, callback: Callable[[], object], why: int = TIMER) -> None:
        """Plan a callback as the last act of another one: it runs at once where no other comes in between."""
        between = bool(self._heap) and self._heap[0][0] <= time_s
        looked_for = time_s >= self._look_s or int(time_s * SLOTS_PER_S) > self._slot
        if between or looked_for or not self.now_s <= time_s <= self._limit_s:
            self.at(time_s, callback, why)
            return
        self._planned += 1
        self._begun += 1
        if time_s > self.now_s:
            self._cause = self._cause.then(time_s, why)
        self.now_s = time_s
        callback()

    def watch(self, look: Callable[[], bool]) -> None:
        """Call `look` after callbacks, at most once in LOOK_S, until it returns True."""
        self._watches.append(look)
        self._look_s = min(self._look_s, self.now_s)

    @property
    def happened(self) -> int:
        """The number of callbacks that have run, or are running."""
        return self._begun

    @property
    def cause(self) -> Cause:
        """The critical path of the callback that is running, from the last mark on."""
        return self._cause

    def mark(self) -> None:
        """Begin all critical paths anew."""
        self._marked = self._planned
        self._mark = self._cause = Cause(self.now_s, self.now_s)

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Run until a condition holds. Returns False where it does not hold by limit_s, or nothing more is planned."""
        pop = heapq.heappop
        self._limit_s = limit_s
        while (self._heap or self._advance()) and not until():
            time_s, number, callback, why, cause = pop(self._heap)
            self._begun += 1
            if time_s > limit_s:
                return False
            self.now_s = time_s
            if number <= self._marked:
                cause = self._mark
            self._cause = cause.then(time_s, why) if time_s > cause.now_s or why == CHANCE else cause
            callback()
            if self.now_s >= self._look_s:
                self._look()
        return until()

    def _look(self) -> None:
        watches, self._watches = self._watches, []
        self._watches += [look for look in watches if not look()]
        self._look_s = self.now_s + LOOK_S if self._watches else FAR_S

    def _advance(self) -> bool:
        """Go on to the next slot that has callbacks. Returns False where there is none."""
        if not self._slots:
            return False
        self._slot = heapq.heappop(self._slots)
        self._heap = self._later.pop(self._slot)
        self._heap.sort()  # a sorted list is a heap
        return True
