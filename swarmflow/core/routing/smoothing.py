"""Measured times, smoothed: the newest one counts a tenth."""

from __future__ import annotations

GAMMA = 0.1  # of a new measurement, as SWARM's (Algorithm 1)


def smoothed(before_s: float | None, seconds: float) -> float:
    """With one more measurement; the first one is taken as it is. before_s: None where there was none."""
    return seconds if before_s is None else GAMMA * seconds + (1 - GAMMA) * before_s
