"""How many peers there are over 32 hours: arrivals, departures, a slow drift and bursts of preemptions, from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

HOUR_S = 3600.0
LOOK_S = 30.0  # the rates change slowly: they are worked out anew at least as often as this


class Change(NamedTuple):
    """A peer comes or goes."""

    time_s: float
    comes: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace's parameters; it is a birth and death process with rates that vary over the day.

    start: peers at first. hours: its length. leaves_per_hour: of each peer, one by one. grants_per_hour: of each
    machine that is wanted and not there. depth: by how much of `start` fewer machines can be had at the worst hour;
    worst_h: that hour, within a day of 24. calm_h: hours at the beginning without bursts. bursts_per_hour: when
    machines are taken back many at a time. burst: the smallest and the largest share of the peers that one takes.
    burst_s: within which they are taken.
    """

    start: int = 400
    hours: float = 32.0
    leaves_per_hour: float = 0.05
    grants_per_hour: float = 1.0
    depth: float = 0.8
    worst_h: float = 33.0
    calm_h: float = 3.0
    bursts_per_hour: float = 0.4
    burst: tuple[float, float] = (0.1, 0.5)
    burst_s: float = 120.0

    def wanted(self, time_s: float) -> float:
        """How many machines can be had at a moment of the day."""
        phase = 2 * math.pi * (time_s / HOUR_S - self.worst_h) / 24.0
        return self.start * (1 - self.depth * (1 + math.cos(phase)) / 2)

    def draw(self, random: Random) -> list[Change]:
        """The changes in their order. Times are whole milliseconds, so that all machines agree on them."""
        end_s, now_s, peers = self.hours * HOUR_S, 0.0, self.start
        changes: list[Change] = []
        due: list[float] = []  # of those that a burst takes, latest first
        while True:
            comes = self.grants_per_hour / HOUR_S * max(0.0, self.wanted(now_s) - peers)
            leaves = self.leaves_per_hour / HOUR_S * peers
            bursts = self.bursts_per_hour / HOUR_S if now_s >= self.calm_h * HOUR_S else 0.0
            rate = comes + leaves + bursts
            step_s = random.expovariate(rate) if rate > 0 else end_s
            next_s = min(now_s + LOOK_S, due[-1] if due else end_s, end_s)
            if now_s + step_s >= next_s:
                now_s = next_s
                if now_s >= end_s:
                    return changes
                if due and due[-1] <= now_s:
                    due.pop()
                    peers -= self._add(changes, now_s, False, peers)
                continue
            now_s += step_s
            what = random.random() * rate
            if what < comes:
                peers += self._add(changes, now_s, True, peers)
            elif what < comes + leaves:
                peers -= self._add(changes, now_s, False, peers)
            else:
                taken = round(random.uniform(*self.burst) * peers)
                due = sorted([*due, *(now_s + random.random() * self.burst_s for _ in range(taken))], reverse=True)

    @staticmethod
    def _add(changes: list[Change], now_s: float, comes: bool, peers: int) -> int:
        """The last peer stays."""
        if not comes and peers < 2:
            return 0
        changes.append(Change(round(now_s, 3), comes))
        return 1
