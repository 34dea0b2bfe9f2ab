"""Figures in words."""

from __future__ import annotations

import math

import pytest

from swarmflow.terminal.formats import bar, clock, count, duration, size, sparkline, transfer


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.5, "0.5"), (812, "812"), (8120.4, "8,120"), (1.25e6, "1.2 M"), (math.inf, "?")]
)
def test_counts(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(-1, "0 s"), (8.9, "8 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (356400, "4 d 3 h")],
)
def test_durations(value_s: float, text: str) -> None:
    assert duration(value_s) == text
    assert duration(math.nan) == "?"


def test_transfers() -> None:
    assert size(40_100_000) == "40.1 MB"
    assert transfer(12_300_000, 40_100_000, 4_000_000) == "12.3 MB of 40.1 MB, 4.0 MB/s, 6 s left"
    assert transfer(12_300_000, 0) == "12.3 MB"


def test_a_curve_shows_the_mean_of_each_part_and_skips_what_is_no_number() -> None:
    assert sparkline([8, None, 7, 6, math.nan, 5, 4, 3, 2, 1], 8) == "█▇▆▅▄▃▂▁"
    assert sparkline([4, 4, 2, 2], 2) == "█▁"
    assert sparkline([1, 1, 1], 8) == "▁▁▁"
    assert sparkline([1], 8) == ""


def test_a_bar_is_full_at_the_end_and_never_longer() -> None:
    assert (bar(0, 10, 4), bar(5, 10, 4), bar(99, 10, 4), bar(1, 0, 4)) == ("────", "━━──", "━━━━", "────")


def test_an_impossible_time_is_no_time() -> None:
    assert clock(1e300) == clock(math.nan) == "--:--:--"
