"""Exponential smoothing of measured times: a new one weighs a tenth."""

from __future__ import annotations

GAMMA = 0.1  # weight of a new measurement, as in SWARM (Algorithm 1)


def smoothed(before_s: float | None, seconds: float) -> float:
    """Return the smoothed time after one more measurement. before_s: the former result; None: this is the first one."""
    return seconds if before_s is None else GAMMA * seconds + (1 - GAMMA) * before_s
