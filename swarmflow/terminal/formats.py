"""Figures in words, as short as a terminal needs them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def count(value: float) -> str:
    """Return a number: `812`, `8,120`, `1.2 M`."""
    if not math.isfinite(value):
        return "?"
    for unit, scale in (("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def size(value: float) -> str:
    """Return bytes in units of 1000: `812 B`, `3.4 MB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.0f} B"


def duration(value_s: float) -> str:
    """Return a time with its two largest units: `8 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    if not math.isfinite(value_s):
        return "?"
    whole = max(0, int(value_s))
    if whole < 60:
        return f"{whole} s"
    for large, unit, small, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def transfer(done_bytes: int, total_bytes: int, rate: float = 0.0) -> str:
    """Return how far a transfer is: `12.3 MB of 40.1 MB, 4.1 MB/s, 7 s left`.

    rate: in bytes/s; 0: it is not known.
    """
    text = f"{size(done_bytes)} of {size(total_bytes)}" if total_bytes else size(done_bytes)
    if rate > 0:
        text += f", {size(rate)}/s"
        if total_bytes:
            text += f", {duration(max(0, total_bytes - done_bytes) / rate)} left"
    return text


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the values as bars, the last ones on the right; each bar is the mean of its share of them."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < 2 or width < 2:
        return ""
    bars = min(width, len(known))
    means = []
    for bar in range(bars):
        part = known[bar * len(known) // bars : (bar + 1) * len(known) // bars]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int((mean - low) / span * len(_BARS)))] for mean in means)


def bar(done: float, total: float, width: int) -> str:
    """Return a bar of a progress, as full as `done` of `total`."""
    share = min(1.0, max(0.0, done / total)) if total > 0 else 0.0
    full = round(share * width)
    return "━" * full + "─" * (width - full)


def clock(time_s: float) -> str:
    """Return a time of the day; an impossible one, which a hostile process may send, is no time."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(time_s))
    except (OverflowError, ValueError, OSError):
        return "--:--:--"
