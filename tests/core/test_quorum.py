"""Majorities: any two that can decide share a process, whatever joined, left or died between two steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.core.commit.quorum import Electorate, Quorum, change_since, electorate_before, electorate_of, quorum_size
from swarmflow.core.protocol.messages import ElectionReport, ElectorateChange, Heartbeat, Join, OpenStep
from swarmflow.core.protocol.messages.votes import with_vote
from swarmflow.core.protocol.types import Epoch, Member, ProcessId, Role, Roster
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
        ("tuab", True, True),
        ("tabc", True, True),
        ("tab", False, False),  # 3 of 5, one of whom may lie: another 3 may share nobody else
        ("ta", False, False),
        ("txyz", False, False),  # strangers do not count
    ],
)
def test_a_majority_or_every_trainer_commits_and_a_majority_with_a_trainer_elects(
    promised: str, commits: bool, elects: bool
) -> None:
    voters = electorate_of(opened("abc", "tu"))
    assert (voters.commits(some(promised)), voters.elects(some(promised))) == (commits, elects)


@given(st.integers(1, 300))
def test_two_majorities_share_more_voters_than_may_lie_and_as_many_as_do_not_lie_are_one(voters: int) -> None:
    most, liars = quorum_size(voters), voters // 5
    assert 2 * most - voters > liars
    assert 2 * (most - 1) - voters <= liars, "no more than needed"
    assert most <= voters - liars or liars == 0, "liars that keep silent hold nothing up"


def test_peers_without_a_certificate_have_no_vote_however_many_they_are() -> None:
    rows = (tuple(replace(member(name), votes=name in "ab") for name in "abcdefgh"),)
    roster = Roster(rows, (member("t", -1), member("u", -1)))
    whole = OpenStep(1, Epoch(0, 0), roster, LINEAGE)
    assert electorate_of(whole) == Electorate(frozenset(some("abtu")), frozenset(some("tu")), 4)
    part = whole.seen_from(0, ())
    assert electorate_of(replace(part, whole="digest", named=whole.voters)).size == 4
    assert not electorate_of(whole).elects(some("tacdefgh"))
    assert electorate_of(whole).elects(some("tab"))
    only = Roster((tuple(replace(member(name), votes=False) for name in "abc"),), (member("t", -1),))
    alone = electorate_of(OpenStep(1, Epoch(0, 0), only, LINEAGE))
    assert (alone.commits(some("t")), alone.elects(some("t")), alone.commits(some("abc"))) == (True, True, False)


def test_what_a_sender_says_of_its_own_vote_counts_for_nothing() -> None:
    for claims in (True, False):
        join = Join("peer", "1", "run", replace(member("a"), votes=claims))
        report = ElectionReport(2, join, replace(member("a"), votes=claims), True, 0, False, opened("a", "t"))
        roles: tuple[tuple[Role | None, bool], ...] = ((None, False), ("peer", True), ("trainer", True))
        for role, votes in roles:
            joined, reported = with_vote(join, role), with_vote(report, role)
            assert isinstance(joined, Join)
            assert isinstance(reported, ElectionReport)
            assert [joined.member.votes, reported.join.member.votes, reported.member.votes] == [votes] * 3
    assert with_vote(Heartbeat(), None) == Heartbeat()


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
    assert quorum.commits(some("tvabc"))
    assert not quorum.elects(some("vabcde")), "no trainer of those before: their trainers may have committed"
    assert quorum.elects(some("tvabcd"))


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
