"""How long to wait for other processes of this machine, which are the slower the more of them there are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def crowding() -> float:
    """Return how many times as long a computation takes as it would alone: runnable threads by cores, at least 1.

    By the load average of the last minute; that of all containers of a machine, which makes one more patient at worst.
    """
    try:
        load = os.getloadavg()[0]
    except OSError:
        return 1.0
    return max(1.0, load / len(os.sched_getaffinity(0)))


class Patience:
    """A deadline in seconds of an idle machine: on a busy one a second counts less, by the same factor."""

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic, crowd: Callable[[], float] = crowding
    ) -> None:
        """seconds: may be infinite."""
        self._left_s = seconds
        self._clock = clock
        self._crowd = crowd
        self._seen_s = clock()

    def over(self) -> bool:
        """Whether the time is up. To be called regularly: each call counts the time since the last one."""
        now_s = self._clock()
        self._left_s -= (now_s - self._seen_s) / self._crowd()
        self._seen_s = now_s
        return self._left_s < 0
