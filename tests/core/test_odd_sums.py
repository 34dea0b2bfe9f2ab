"""Who sums after sums have differed: one at a time for a while, and nobody who may have lied to another member."""

from __future__ import annotations

from swarmflow.core.commit.odd_sums import VERSIONS, OddSums
from swarmflow.core.commit.piece_owners import Owning, with_owners
from swarmflow.core.membership.disputes import MEMORY_S
from swarmflow.core.protocol.types import Group, ProcessId
from swarmflow.core.routing.link_rates import LinkTable
from tests.core.samples import process

A, B, C, D = map(process, "abcd")
STAGE, OTHER = Group("stage-0", (A, B, C)), Group("stage-1", (A, D))


def test_one_member_sums_at_a_time_for_some_versions_after_sums_have_differed() -> None:
    sums = OddSums()
    assert sums.owning(10, 0.0) == Owning()
    sums.differed(10, traced=False)
    owners = [sums.owning(version, 0.0).owners(STAGE) for version in range(10, 10 + VERSIONS)]
    assert {len(each) for each in owners} == {1}
    assert {owner for each in owners for owner in each} == {A, B, C}, "who lies only while several sum gets its turn"
    assert sums.owning(10 + VERSIONS, 0.0) == Owning()


def test_each_try_at_a_step_has_another_owner() -> None:
    sums = OddSums()
    found: list[ProcessId] = []
    for _ in range(3):
        sums.differed(10, traced=bool(found))
        found += sums.owning(10, 0.0).owners(STAGE)
    assert found == [A, B, C]


def test_two_that_contradict_each_other_sum_nothing_where_others_can_and_for_an_hour() -> None:
    sums = OddSums()
    sums.apart(A.name, B.name, 0.0)
    assert sums.owning(10, MEMORY_S).owners(STAGE) == (C,)
    assert sums.owning(10, MEMORY_S).owners(OTHER) == (), "they are not both in it"
    assert sums.owning(10, MEMORY_S + 1.0).owners(STAGE) == ()
    sums.apart(B.name, C.name, 0.0)
    assert sums.owning(10, 0.0).owners(STAGE) == (A, B, C), "nobody is left who is not doubted"
    free, doubted = with_owners([OTHER, STAGE], sums.owning(10, 0.0), (), {}, LinkTable())
    assert (free, doubted.owners) == (OTHER, (A, B, C))
