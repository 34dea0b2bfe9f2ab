"""Who left with a stage in its folder: waited for as long as it can bring back all that is lost."""

from __future__ import annotations

from swarmflow.core.durability.recovery import Absentees
from swarmflow.core.protocol.messages import Held

NAME, NEXT = "n" * 32, "m" * 32


def absentees(**held: Held) -> Absentees:
    """They are waited for until 10, 11, ..."""
    found = Absentees()
    for late, (name, what) in enumerate(held.items()):
        found.left(name, what, 10.0 + late)
    return found


def awaited(found: Absentees, *stages: int, now: float = 0.0) -> list[str]:
    """Of version 9."""
    return [one.name for one in found.awaited(list(stages), 9, NAME, now)]


def test_all_the_stages_that_are_lost_have_to_come_back() -> None:
    found = absentees(a=Held(0, 9, NAME), b=Held(1, 9, NAME))
    assert awaited(found, 1) == ["b"]
    assert awaited(found, 0, 1) == ["a", "b"]
    assert awaited(found, 1, 2) == []


def test_of_two_with_one_stage_the_later_is_waited_for_and_no_longer_than_its_time() -> None:
    found = absentees(a=Held(1, 9, NAME), b=Held(1, 9, NAME))
    assert awaited(found, 1, now=10.5) == ["b"]
    assert awaited(found, 1, now=11.0) == []


def test_who_lacks_the_commit_alone_holds_it_too_and_another_history_does_not() -> None:
    assert awaited(absentees(a=Held(1, 8, "", upcoming=NAME)), 1) == ["a"]
    assert awaited(absentees(a=Held(1, 9, NEXT)), 1) == []
    assert absentees(a=Held(1, 9, NAME)).awaited([1], 9, "", 0.0) == [], "the version's name is not known"


def test_who_is_back_and_who_is_behind_is_not_waited_for() -> None:
    found = absentees(a=Held(1, 9, NAME), b=Held(1, 9, NAME, upcoming=NEXT))
    found.keep(10, NEXT)
    assert [one.name for one in found.awaited([1], 10, NEXT, 0.0)] == ["b"]
    found.back("b")
    assert not found
