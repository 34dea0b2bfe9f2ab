"""A record of what machines decide is blind to names, and to nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import pytest

from tests.simulation.traces import Recorder, differences, record


@dataclass(frozen=True)
class Old:
    said: int
    told: tuple[str, ...] = ()


@dataclass(frozen=True)
class New:
    sent: int
    received: tuple[str, ...] = ()


class Phase(Enum):
    GATHERING = "gathering"
    RUNNING = "running"


class Stage(Enum):
    IDLE = "idle"
    BUSY = "busy"


class Pair(NamedTuple):
    one: int
    other: int


def digest(*values: object) -> str:
    recorder = Recorder()
    for value in values:
        recorder.add(value)
    return recorder.digest()


def test_names_do_not_count() -> None:
    assert digest(Old(1, ("a",)), Phase.RUNNING) == digest(New(1, ("a",)), Stage.BUSY)
    assert digest({"a", "b", "c"}, {1: Old(2)}) == digest({"c", "b", "a"}, {1: New(2)})


@pytest.mark.parametrize(
    "other",
    [
        lambda: [New(2), Stage.BUSY],
        lambda: [New(1, ("a",)), Stage.BUSY],
        lambda: [New(1), Stage.IDLE],
        lambda: [(1, ()), Stage.BUSY],
        lambda: [Stage.BUSY, New(1)],
        lambda: [New(1), New(1)],
    ],
)
def test_values_kinds_and_order_do(other: Callable[[], list[object]]) -> None:
    assert digest(Old(1), Phase.RUNNING) != digest(*other())


def test_a_seed_is_recorded_alike_twice_and_other_names_are_listed() -> None:
    one, other = record(3), record(3)
    assert one["values"] > 1000
    assert differences([one], [other]) == ([], {})
    first, *rest = one["names"]
    assert differences([one], [{**other, "names": ["elsewhere.Renamed()", *rest]}]) == (
        [],
        {first: "elsewhere.Renamed()"},
    )
    assert differences([one], [{**other, "digest": "another"}])[0] != []
    assert differences([one], [{**other, "names": [rest[0], *rest]}])[0] != [], "two names became one"


def test_a_pair_is_not_a_plain_tuple() -> None:
    assert digest(Pair(1, 2)) != digest((1, 2))
