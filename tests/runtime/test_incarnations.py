"""Which life of a process is the current one: proofs of life decide, never the size of an incarnation."""

from __future__ import annotations

from itertools import permutations

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.runtime.transport.incarnations import NAMES_MAX, RETIRED_MAX, IncarnationTracker, new_incarnation


def life(incarnation: int, name: str = "p") -> ProcessId:
    return ProcessId(name, incarnation)


@pytest.mark.parametrize("numbers", list(permutations((1, 2, 3))))
def test_each_life_replaces_the_one_before_whatever_their_numbers(numbers: tuple[int, ...]) -> None:
    lives, former = IncarnationTracker(), None
    for number in numbers:
        assert lives.answered(life(number), lives.challenge()) == (True, former)
        former = life(number)
    assert [lives.retired(life(number)) for number in numbers] == [True, True, False]
    assert lives.answered(life(numbers[0]), lives.challenge()) == (False, None), "refused for ever"
    assert lives.answered(life(numbers[2]), lives.challenge()) == (True, None)


def test_an_answer_to_an_earlier_challenge_that_is_read_late_changes_nothing() -> None:
    lives = IncarnationTracker()
    old, new = lives.challenge(), lives.challenge()
    assert lives.answered(life(7), new) == (True, None)
    assert lives.answered(life(9), old) == (False, None)
    assert lives.retired(life(9)), "it lived before the other one did"


def test_answers_in_the_order_of_the_challenges_are_lives_in_that_order() -> None:
    lives = IncarnationTracker()
    old, new = lives.challenge(), lives.challenge()
    assert lives.answered(life(9), old) == (True, None)
    assert lives.answered(life(7), new) == (True, life(9))


def test_the_memory_is_bounded() -> None:
    lives = IncarnationTracker()
    for number in range(1, RETIRED_MAX + 3):
        lives.answered(life(number), lives.challenge())
    assert [lives.retired(life(number)) for number in (1, 2, RETIRED_MAX + 1)] == [False, True, True]
    for number in range(NAMES_MAX):
        lives.answered(life(1, f"n{number}"), lives.challenge())
    assert not lives.retired(life(2)), "the name was forgotten"
    assert lives.answered(life(3), lives.challenge()) == (True, None)


def test_incarnations_are_random_and_never_the_one_that_stands_for_any() -> None:
    drawn = {new_incarnation() for _ in range(100)}
    assert len(drawn) == 100
    assert all(0 < incarnation < 1 << 63 for incarnation in drawn)
