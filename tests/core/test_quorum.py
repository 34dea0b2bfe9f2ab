"""Majorities: any two that can decide share a process, whatever joined, left or died between two steps."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.core.commit.quorum import Electorate, Quorum, change_since, electorate_before, electorate_of
from swarmflow.core.protocol.messages import ElectorateChange, OpenStep
from swarmflow.core.protocol.types import Epoch, Member, ProcessId, Roster
from tests.core.samples import LINEAGE, member, process


def opened(peers: str, trainers: str, step: int = 0, before: Electorate | None = None) -> OpenStep:
    """An OpenStep of one stage with these peers and trainers, after a step with this electorate."""
    rows: tuple[tuple[Member, ...], ...] = (tuple(member(name) for name in peers),)
    roster = Roster(rows, tuple(member(name, -1) for name in trainers))
    return OpenStep(1, Epoch(0, step), roster, LINEAGE, change=change_since(before, roster))


def some(names: str) -> set[ProcessId]:
    return {process(name) for name in names}


@pytest.mark.parametrize(
    ("promised", "commits", "elects"),
    [
        ("tu", True, False),  # every trainer: whoever stands has promised
        ("tab", True, True),
        ("abc", True, False),  # nobody of them may lead
        ("ta", False, False),
        ("txyz", False, False),  # strangers do not count
    ],
)
def test_a_majority_or_every_trainer_commits_and_a_majority_with_a_trainer_elects(
    promised: str, commits: bool, elects: bool
) -> None:
    voters = electorate_of(opened("abc", "tu"))
    assert (voters.commits(some(promised)), voters.elects(some(promised))) == (commits, elects)


def test_newcomers_have_no_vote() -> None:
    [stage], trainers = opened("ab", "t").roster.stages, opened("ab", "t").roster.trainers
    said = OpenStep(1, Epoch(0, 0), Roster((stage,), trainers), LINEAGE, newcomers=(process("b"),))
    assert electorate_of(said) == Electorate(frozenset(some("at")), frozenset(some("t")), 2)


def test_an_open_says_how_its_electorate_differs_from_the_one_before() -> None:
    before = electorate_of(opened("abc", "tu"))
    said = opened("bd", "uv", 1, before)
    assert said.change == ElectorateChange(
        (process("d"), process("v")), (process("a"), process("c"), process("t")), (process("t"),)
    )
    assert electorate_before(said) == before
    assert electorate_before(opened("a", "t")) is None


def test_both_electorates_have_to_agree() -> None:
    quorum = Quorum.of(opened("ade", "tv", 1, electorate_of(opened("abc", "tu"))))
    assert not quorum.commits(some("tvade")), "2 of the 5 that were named before, and not all trainers"
    assert quorum.commits(some("tvab"))
    assert not quorum.elects(some("vabc")), "no trainer of those before: their trainers may have committed"
    assert quorum.elects(some("tvab"))


names = st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.sets(st.sampled_from("tuv"), min_size=1))
rosters = names.map(lambda both: ("".join(sorted(both[0])), "".join(sorted(both[1]))))


@given(before=rosters, one=rosters, other=rosters)
def test_who_commits_and_who_is_elected_have_a_process_in_common(
    before: tuple[str, str], one: tuple[str, str], other: tuple[str, str]
) -> None:
    """Two leaders that go on from one committed step with whomever each of them reaches."""
    last = electorate_of(opened(before[0], before[1]))
    commit, election = (Quorum.of(opened(peers, trainers, 1, last)) for peers, trainers in (one, other))
    everybody = sorted(some("abcdtuv"))
    for size in range(len(everybody) + 1):
        for promised in combinations(everybody, size):
            rest = set(everybody) - set(promised)
            assert not (commit.commits(set(promised)) and election.elects(rest))
