"""Virtual time: a queue of things that will happen, in an order that a seed alone decides."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from swarmflow.simulator.causes import BEGINNING, CHANCE, TIMER, Cause

# When, the how-manieth that was planned, what, what it waits for, and from what it follows.
Planned = tuple[float, int, Callable[[], object], int, Cause]

SLOTS_PER_S = 256.0  # 10,000 peers plan some 150 things for each
FAR_S = 1e12
LOOK_S = 0.002  # how closely phases are watched for; the shortest lasts a message's way


@dataclass(slots=True)
class Clock:
    """Runs callbacks in the order of their times; those of one moment in the order in which they were planned.

    Those of the slot of time at hand, and before, are in a heap. Those after it only lie in lists, one a slot: of a
    heap of all of them little would be in the computer's caches.
    """

    now_s: float = 0.0
    _limit_s: float = 0.0
    _heap: list[Planned] = field(default_factory=list)
    _slot: int = 0
    _slots: list[int] = field(default_factory=list)
    _later: dict[int, list[Planned]] = field(default_factory=dict)
    _planned: int = 0
    _begun: int = 0
    _marked: int = 0
    _mark: Cause = BEGINNING
    _cause: Cause = BEGINNING
    _watches: list[Callable[[], bool]] = field(default_factory=list)
    _look_s: float = FAR_S

    def after(self, delay_s: float, callback: Callable[[], object], why: int = TIMER) -> None:
        """Plan a callback. delay_s: at least 0, from now. why: what it waits for (simulator/causes.py)."""
        if delay_s < 0:
            raise ValueError(f"nothing can happen {-delay_s} s ago")
        self.at(self.now_s + delay_s, callback, why)

    def at(self, time_s: float, callback: Callable[[], object], why: int = TIMER) -> None:
        """Plan a callback. time_s: not before now. why: what it waits for."""
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
        """The same, as the last thing that a callback does: where nothing comes in between, it runs at once."""
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
        """Call this after what happens, but once in LOOK_S at most, until it returns True."""
        self._watches.append(look)
        self._look_s = min(self._look_s, self.now_s)

    @property
    def happened(self) -> int:
        """How many callbacks have run, or are running."""
        return self._begun

    @property
    def cause(self) -> Cause:
        """The critical path of what happens now, from the last mark on."""
        return self._cause

    def mark(self) -> None:
        """All critical paths begin anew."""
        self._marked = self._planned
        self._mark = self._cause = Cause(self.now_s, self.now_s)

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Run until a condition holds. False: it did not hold by limit_s, or nothing more will ever happen."""
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
        """Go on to the next slot in which something happens. False: there is none."""
        if not self._slots:
            return False
        self._slot = heapq.heappop(self._slots)
        self._heap = self._later.pop(self._slot)
        self._heap.sort()  # which is a heap too
        return True
