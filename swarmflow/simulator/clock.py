"""Virtual time: a queue of things that will happen, in an order that a seed alone decides."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clock:
    """Runs callbacks in the order of their times; those of one moment in the order in which they were planned."""

    now_s: float = 0.0
    _queue: list[tuple[float, int, Callable[[], object]]] = field(default_factory=list)
    _planned: int = 0

    def after(self, delay_s: float, callback: Callable[[], object]) -> None:
        """Plan a callback. delay_s: at least 0, from now."""
        if delay_s < 0:
            raise ValueError(f"nothing can happen {-delay_s} s ago")
        self._planned += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self._planned, callback))

    def at(self, time_s: float, callback: Callable[[], object]) -> None:
        """Plan a callback. time_s: not before now."""
        self._planned += 1
        heapq.heappush(self._queue, (time_s if time_s > self.now_s else self.now_s, self._planned, callback))

    @property
    def happened(self) -> int:
        """How many callbacks have run, or are running."""
        return self._planned - len(self._queue)

    def run(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Run until a condition holds. False: it did not hold by limit_s, or nothing more will ever happen."""
        while self._queue and not until():
            time_s, _, callback = heapq.heappop(self._queue)
            if time_s > limit_s:
                return False
            self.now_s = time_s
            callback()
        return until()
