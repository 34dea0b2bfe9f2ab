"""Deadlines of who waits for processes beside it: a crowded machine is given more time, and never less."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from swarmflow.local.load_aware import LoadAwareTimeout, load_factor
from swarmflow.system import usable_cores


def ticks(*times_s: float) -> Iterator[float]:
    yield from times_s


def test_seconds_of_a_machine_that_has_time_are_seconds() -> None:
    clock = ticks(100.0, 109.0, 110.5)
    timeout = LoadAwareTimeout(10.0, lambda: next(clock), lambda: 1.0)
    assert [timeout.expired(), timeout.expired()] == [False, True]


def test_seconds_of_a_crowded_machine_count_less() -> None:
    clock, crowds = ticks(0.0, 40.0, 50.0, 56.0), ticks(8.0, 2.0, 1.0)
    timeout = LoadAwareTimeout(15.0, lambda: next(clock), lambda: next(crowds))
    assert [timeout.expired(), timeout.expired(), timeout.expired()] == [False, False, True]


@pytest.mark.parametrize(("load", "times"), [(0.0, 1.0), (0.5, 1.0), (8.0, 8.0)])
def test_the_crowd_is_what_wants_to_compute_by_the_cores(
    load: float, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = usable_cores()
    monkeypatch.setattr(os, "getloadavg", lambda: (load * cores, 0.0, 0.0))
    assert load_factor() == times
