"""How far a process is with loading a stage from another one: bytes, rate, time left."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from swarmflow.core.protocol.types import ProcessId
from swarmflow.files import readable_size

log = logging.getLogger("swarmflow")

RATE_WINDOW_S = 10.0  # the rate is the mean of the last seconds: chunks arrive in bursts
GROWTH_WINDOW_S = 60.0  # the updates that a run makes meanwhile come with its steps
LOG_EVERY_S = 5.0  # a load that takes less writes no line on its way
_SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far the loading of a stage is."""

    stage: int
    version: int
    donor: str = ""  # process that sends the stage, or how many do; empty: none has answered yet
    received_bytes: int = 0
    total_bytes: int = 0  # 0: not known yet
    bytes_per_s: float = 0.0  # of the last RATE_WINDOW_S
    growth_per_s: float = 0.0  # of total_bytes in the last GROWTH_WINDOW_S: updates are made meanwhile

    @property
    def left_s(self) -> float | None:
        """Time left at the present rates; None: nothing arrives, or no more than becomes necessary meanwhile."""
        closing_per_s = self.bytes_per_s - self.growth_per_s
        return (self.total_bytes - self.received_bytes) / closing_per_s if closing_per_s > 0 else None

    def __str__(self) -> str:
        """Return a line for people: `loading stage 1: 120.0 MB of 400.0 MB from ab12cd, 8.1 MB/s, 35 s left`."""
        return f"loading stage {self.stage}: {self.amounts()}"

    def amounts(self) -> str:
        """Return how much of it has come from where, how fast, and how long the rest takes."""
        if not self.donor:
            return "waiting for the answer of a process that has it"
        sizes = f"{readable_size(self.received_bytes)} of {readable_size(self.total_bytes)}"
        rate = f"{readable_size(round(self.bytes_per_s))}/s"
        if self.left_s is not None:
            left = f"{rate}, {self.left_s:.0f} s left"
        elif self.bytes_per_s > 0:
            left = f"{rate}, and the run's updates are made as fast: this link may be too slow for its short steps"
        else:
            left = "nothing arrives at the moment"
        return f"{sizes} from {self.donor}, {left}"


@dataclass(eq=False)
class _MeteredLoad:
    """One load, and what has arrived of it over the last seconds."""

    stage: int
    version: int
    began_s: float
    donor: str = ""
    received_bytes: int = 0
    total_bytes: int = 0
    samples: deque[tuple[float, int]] = field(default_factory=deque)  # (time, bytes received by then)
    totals: deque[tuple[float, int]] = field(default_factory=deque)  # (time, bytes in total, as far as known then)


class LoadMeter:
    """Follows the loads of a process, the last one that has begun; `progress` is what others read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._load: _MeteredLoad | None = None

    @property
    def progress(self) -> LoadProgress | None:
        """How far the present load is; None: nothing is loaded."""
        load = self._load
        if load is None:
            return None
        amounts = load.donor, load.received_bytes, load.total_bytes
        now = self._clock()
        rate = _rate(load.samples, load.received_bytes, RATE_WINDOW_S, now)
        growth = _rate(load.totals, load.total_bytes, GROWTH_WINDOW_S, now)
        return LoadProgress(load.stage, load.version, *amounts, rate, growth)

    @contextmanager
    def loading(self, stage: int, version: int) -> Iterator[Callable[[ProcessId | str, int, int], None]]:
        """Follow a load inside the `with` block, which is given the function to report progress to.

        A later load takes the place of an earlier one whose block has not ended yet.
        """
        load = self._load = _MeteredLoad(stage, version, self._clock())

        def progressed(donor: ProcessId | str, received_bytes: int, total_bytes: int) -> None:
            now = self._clock()
            if str(donor) != load.donor or received_bytes < load.received_bytes:
                load.donor = str(donor)
                load.samples.clear()  # the rate of another donor says nothing
            load.received_bytes, load.total_bytes = received_bytes, total_bytes
            _sample(load.samples, received_bytes, RATE_WINDOW_S, now)
            if total_bytes:
                _sample(load.totals, total_bytes, GROWTH_WINDOW_S, now)

        telling = asyncio.get_running_loop().create_task(self._tell(load))
        try:
            yield progressed
            if load.donor:
                took_s, size = self._clock() - load.began_s, readable_size(load.total_bytes)
                log.info("received stage %d: %s from %s in %.1f s", stage, size, load.donor, took_s)
        finally:
            telling.cancel()
            if self._load is load:
                self._load = None

    async def _tell(self, load: _MeteredLoad) -> None:
        while True:
            await asyncio.sleep(LOG_EVERY_S)
            if self._load is load:
                log.info("%s", self.progress)


def under_donors_name(
    measure: Callable[[ProcessId | str, int, int], None],
) -> Callable[[Sequence[ProcessId], int, int], None]:
    """Return a function that reports progress under the name of the donor, or as that of several."""

    def report(donors: Sequence[ProcessId], received_bytes: int, total_bytes: int) -> None:
        name = donors[0] if len(donors) == 1 else f"{len(donors)} processes"
        measure(name, received_bytes, total_bytes)

    return report


def _rate(samples: deque[tuple[float, int]], amount: int, window_s: float, now: float) -> float:
    """Return by how much an amount has grown a second, over the window or as long as it is known."""
    _forget(samples, window_s, now)
    if not samples:
        return 0.0
    since_s, before = samples[0]
    return (amount - before) / (now - since_s) if now > since_s else 0.0


def _sample(samples: deque[tuple[float, int]], amount: int, window_s: float, now: float) -> None:
    if not samples or now >= samples[-1][0] + _SAMPLE_S:
        samples.append((now, amount))
    _forget(samples, window_s, now)


def _forget(samples: deque[tuple[float, int]], window_s: float, now: float) -> None:
    """Drop the samples before the last one that is at least as old as the window is long."""
    while len(samples) > 1 and samples[1][0] <= now - window_s:
        samples.popleft()
