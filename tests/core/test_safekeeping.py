"""When the last version is written once more, and when the disk is to blame."""

from __future__ import annotations

from swarmflow.core.events import CheckpointWritten
from swarmflow.core.leading.copies import Copies
from swarmflow.core.leading.safekeeping import Safekeeping
from swarmflow.core.types import Roster

RETRY_S = 8.0
VERSION = 4


def safe() -> Safekeeping:
    return Safekeeping(0, RETRY_S, Copies(1), 0)


def fail(safe: Safekeeping, now: float, disturbed: bool = False) -> bool:
    """One more try to write the last version fails at `now`; whether it is to be tried again."""
    safe.write(VERSION, Roster(((),), ()), last=True)
    if disturbed:
        safe.disturbed()
    safe.written(CheckpointWritten(VERSION, ok=False, reason="it failed"))
    return safe.try_last_again(now)


def test_where_nobody_died_it_is_tried_once_more_when_a_death_would_be_known() -> None:
    last = safe()
    assert fail(last, 1.0)
    assert not last.due_again(1.0 + RETRY_S / 2)
    assert last.due_again(1.0 + RETRY_S)
    assert not fail(last, 1.0 + RETRY_S), "it is the disk"


def test_a_known_death_is_a_reason_to_try_at_once_and_those_not_known_yet_are_waited_for_after_it() -> None:
    last = safe()
    assert fail(last, 1.0, disturbed=True)
    assert last.due_again(1.0)
    assert fail(last, 2.0), "others may have died with that one"
    assert not last.due_again(2.0)
    assert fail(last, 2.0 + RETRY_S, disturbed=True)
    assert fail(last, 3.0 + RETRY_S)
    assert not fail(last, 3.0 + 2 * RETRY_S)


def test_a_run_that_went_back_has_all_its_tries_again() -> None:
    last = safe()
    assert fail(last, 1.0)
    last.went_back()
    assert not last.due_again(100.0)
    assert fail(last, 100.0)
