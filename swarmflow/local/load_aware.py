"""Timeouts for other processes of this machine, which are slower the more of them run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from swarmflow.system import usable_cores


def load_factor() -> float:
    """Return by what factor the machine's load slows a computation down: runnable threads per core, at least 1.

    From the load average of the last minute. It counts all containers of a machine, which at worst lengthens timeouts.
    """
    try:
        load = os.getloadavg()[0]
    except OSError:
        return 1.0
    return max(1.0, load / usable_cores())


class LoadAwareTimeout:
    """A timeout in seconds of an idle machine; on a busy one it is longer, by the factor `load_factor`."""

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic, factor: Callable[[], float] = load_factor
    ) -> None:
        """seconds: may be infinite."""
        self._remaining_s = seconds
        self._clock = clock
        self._factor = factor
        self._counted_until_s = clock()

    def expired(self) -> bool:
        """Return whether the time is up. Call it regularly: each call counts the time since the last one."""
        now_s = self._clock()
        self._remaining_s -= (now_s - self._counted_until_s) / self._factor()
        self._counted_until_s = now_s
        return self._remaining_s < 0
