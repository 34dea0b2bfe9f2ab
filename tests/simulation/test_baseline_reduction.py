"""The all-reduce of a baseline, whatever comes in which order, and whoever dies meanwhile."""

from __future__ import annotations

import itertools

import pytest

from swarmflow.baselines.messages import Aggregate, BaselinePart, BaselineSum
from swarmflow.baselines.reduction import BaselineReduction
from swarmflow.core.protocol.types import ProcessId
from tests.simulation.test_baseline_hops import ME, Computer

A, B = ProcessId("a", 1), ProcessId("b", 1)
GROUP = "stage 1"
PART, SUM = BaselinePart(0, GROUP), BaselineSum(0, GROUP)


def reduction(computer: Computer, done: list[bool], *members: ProcessId) -> BaselineReduction:
    return BaselineReduction(computer, Aggregate(0, ((GROUP, (ME, *members)),)), lambda: done.append(True))


def test_who_is_alone_has_nothing_to_sum() -> None:
    computer, done = Computer(), list[bool]()
    reduction(computer, done).start()
    assert (computer.sent, done) == ([], [True])


@pytest.mark.parametrize("order", list(itertools.permutations(("part a", "part b", "sum a", "sum b"))))
def test_it_ends_when_all_parts_and_all_sums_are_here(order: tuple[str, ...]) -> None:
    computer, done = Computer(), list[bool]()
    of = reduction(computer, done, A, B)
    of.start()
    assert computer.sent == [PART, PART]
    for number, what in enumerate(order):
        assert not done, f"{order[number:]} are not here"
        kind, name = what.split()
        if kind == "part":
            of.add_part(ProcessId(name, 1), PART)
        else:
            of.take_sum(ProcessId(name, 1), SUM)
    assert (computer.sent, done) == ([PART, PART, SUM, SUM], [True])


@pytest.mark.parametrize("early", [False, True])
def test_the_others_go_on_without_who_dies_and_end_no_sooner_for_it(early: bool) -> None:
    computer, done = Computer(), list[bool]()
    of = reduction(computer, done, A, B)
    if early:
        of.lost(B)
    of.start()
    of.lost(B)
    assert not done
    of.add_part(A, PART)
    assert computer.sent[-1] == SUM, "of what is here"
    assert not done, "the sum of a is awaited"
    of.take_sum(A, SUM)
    assert done == [True]


def test_who_is_left_alone_before_it_begins_does_not_wait() -> None:
    computer, done = Computer(), list[bool]()
    of = reduction(computer, done, A)
    of.lost(A)
    of.start()
    assert done == [True]
    assert sum(share for _, share in computer.lost) == 1.0, "nobody has any of it"


@pytest.mark.parametrize(("came", "lost"), [((), 1 / 3 + 1 / 6), (("part",), 1 / 6), (("part", "sum"), 0.0)])
def test_what_had_not_come_of_a_dead_member_is_told_as_lost(came: tuple[str, ...], lost: float) -> None:
    """A third of a gradient is summed here; of a third that the dead member owned, this is one of two copies."""
    computer, done = Computer(), list[bool]()
    of = reduction(computer, done, A, B)
    of.start()
    if "part" in came:
        of.add_part(B, PART)
    if "sum" in came:
        of.take_sum(B, SUM)
    of.lost(B)
    of.add_part(A, PART)
    of.take_sum(A, SUM)
    assert done == [True]
    assert sum(share for _, share in computer.lost) == pytest.approx(lost)
    assert {process for process, share in computer.lost if share} <= {B}


@pytest.mark.parametrize("me", [A, ME, B])
def test_each_member_sends_to_the_one_behind_it_first(me: ProcessId) -> None:
    members, computer = sorted((A, ME, B)), Computer()
    computer.me = me
    BaselineReduction(computer, Aggregate(0, ((GROUP, tuple(members)),)), lambda: None).start()
    place = members.index(me)
    assert computer.receivers == members[place + 1 :] + members[:place], "no downlink gets all of the first parts"
