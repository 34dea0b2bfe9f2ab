"""What a process owes the run at the moment, and since when nothing of it was done."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.latest import Latest

FACTOR = 10.0  # ten times the usual time without a sign of progress is standing still, as a microbatch is late by then
FIRST_FACTOR = 8.0  # of the least time, as long as what is usual is not known
FADES = 0.9  # of the longest time between two signs of progress, with each that follows
PAUSE_MAX_S = 3600.0
DOUBLINGS_MAX = 60  # of a pause; long before that it is PAUSE_MAX_S
FORGIVEN_AFTER = 10.0  # pauses in a row without being put out again


@dataclass(slots=True)
class Duty:
    """One thing that a process owes."""

    task: str = ""  # its kind, empty: nothing is owed
    since_s: float = 0.0  # of the last sign of progress
    usual_s: dict[str, float] = field(default_factory=dict)  # by kind, the longest time between two signs lately
    misses: int = 0  # how often it was found to stand still since the last sign
    _progress: tuple[int, ...] = ()
    _spent: tuple[str, float] = ("", 0.0)  # without a sign of progress: on what was owed last, and for how long

    def see(self, task: str, progress: tuple[int, ...], now: float, own: bool = True) -> None:
        """Record what is owed now, and how much is done: any change of these numbers is progress.

        own: it did not wait for others meanwhile, so that the time since the last sign is its own. Time in which it
        owed nothing or something else does not count, and does not end the time in which it did nothing.
        """
        if progress != self._progress:
            if self.task and own and not self.misses:
                self.usual_s[self.task] = max(now - self.since_s, FADES * self.usual_s.get(self.task, 0.0))
            self.since_s, self.misses, self._spent = now, 0, ("", 0.0)
        elif task == self.task:
            return
        else:  # it was taken from it, or ended with the step: no progress of its own
            if self.task:
                self._spent = self.task, now - self.since_s
            before, spent_s = self._spent
            self.since_s = now - (spent_s if task == before else 0.0)
        self.task, self._progress = task, progress

    def due_s(self, least_s: float, first: float = 1.0, usual_s: float = 0.0) -> float:
        """When it stands still. first: the factor of the least time while nothing is known. usual_s: of its likes."""
        return self.since_s + self.patience_s(least_s, first, usual_s) * 2.0**self.misses

    def patience_s(self, least_s: float, first: float = 1.0, usual_s: float = 0.0) -> float:
        """Return after how long without progress it counts as standing still for the first time."""
        known_s = max(self.usual_s.get(self.task, 0.0), usual_s)
        return max(least_s, FACTOR * known_s) if known_s > 0 else first * least_s

    def miss(self, now: float) -> None:
        """Count a time that it stood still: it has twice as long from now on."""
        self.misses += 1
        self.since_s = now


@dataclass(slots=True)
class _Pause:
    count: int
    until_s: float
    reason: str


@dataclass(slots=True)
class Pauses:
    """Processes that were put out, by name: each waits before it comes back, twice as long each time."""

    pause_s: float  # the first time
    forgiven_after: float = FORGIVEN_AFTER  # pauses in a row without being put out again
    _by_name: Latest[str, _Pause] = field(default_factory=Latest)

    def begin(self, name: str, reason: str, now: float) -> float:
        """Keep a process out for a while; return for how many seconds."""
        former = self._by_name.get(name)
        fresh = former is None or now - former.until_s > self.forgiven_after * self._long_s(former)
        count = 0 if former is None or fresh else former.count
        pause = self._by_name[name] = _Pause(count + 1, 0.0, reason)
        pause.until_s = now + self._long_s(pause)
        return self._long_s(pause)

    def left(self, name: str, now: float) -> tuple[float, str]:
        """Return for how many seconds more a process is kept out, 0: it may come; and why."""
        pause = self._by_name.get(name)
        return (0.0, "") if pause is None or pause.until_s <= now else (pause.until_s - now, pause.reason)

    def present(self, now: float) -> list[tuple[str, str]]:
        """Return the processes that are kept out now, and why."""
        return [(name, pause.reason) for name, pause in sorted(self._by_name.items()) if pause.until_s > now]

    def last_s(self, name: str) -> float:
        """Return for how long a process was kept out the last time, 0: it never was."""
        return self._long_s(self._by_name[name]) if name in self._by_name else 0.0

    def _long_s(self, pause: _Pause) -> float:
        return min(self.pause_s * 2.0 ** min(pause.count - 1, DOUBLINGS_MAX), PAUSE_MAX_S)
