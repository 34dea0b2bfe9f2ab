"""Membership: where a newcomer is placed, and who counts as there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import DONORS_MAX, Membership
from swarmflow.core.membership.placement import better_placed, place, spare
from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.types import Member, Plan, ProcessId
from tests.core.samples import member, process


def join(name: str, stage: int = -1, role: str = "peer", speed: float = 1.0) -> Join:
    return Join(role, "software", "run", member(name, stage), speed)


def placed(table: Membership, name: str, speed: float = 1.0) -> int:
    stage, _ = place(table, -1)
    table.enter(join(name, speed=speed), stage, 0.0)
    return stage


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 30))
def test_equal_peers_that_start_together_spread(stages: int, peers: int) -> None:
    table = Membership(Plan(stages, 8))
    for number in range(peers):
        placed(table, f"p{number:02}")
    sizes = [len(table.peers(stage)) for stage in range(stages)]
    assert max(sizes) - min(sizes) <= 1


def test_empty_stages_first_then_the_highest_load_per_capacity() -> None:
    table = Membership(Plan(3, 8, costs=(1.0, 4.0, 1.0)))
    assert [placed(table, f"p{number}") for number in range(3)] == [0, 1, 2]
    assert placed(table, "p3") == 1
    assert placed(table, "p4", speed=8.0) == 1
    assert placed(table, "p5") == 0, "stage 1 has become fast"


def test_a_wish_is_granted() -> None:
    assert place(Membership(Plan(3, 8)), 2) == (2, "as asked for")


def test_those_who_leave_do_not_count_for_the_placement() -> None:
    table = Membership(Plan(2, 8))
    placed(table, "p0")
    placed(table, "p1")
    table.known[process("p0")].draining = True
    table.changed(table.known[process("p0")])
    assert place(table, -1) == (0, "nobody serves it")


def test_the_roster_has_who_is_ready_at_the_version_and_stays() -> None:
    table = Membership(Plan(1, 8))
    for name in ("ready", "loading", "old", "leaving"):
        entry = table.enter(join(name), 0, 0.0)
        table.mark(entry, MemberPhase.LOADING if name == "loading" else MemberPhase.READY)
        entry.version, entry.draining = (3 if name == "old" else 4), name == "leaving"
    table.enter(join("t", role="trainer"), -1, 0.0)
    roster = table.roster(4)
    assert [peer.process.name for peer in roster.peers] == ["ready"]
    assert [trainer.process.name for trainer in roster.trainers] == ["t"]
    assert [entry.process.name for entry in table.loading(4)] == ["loading"]


def test_the_silent_are_found_but_not_the_leader_itself() -> None:
    table = Membership(Plan(1, 8))
    for name, heard_s in (("a", 0.0), ("b", 9.0), ("me", 0.0)):
        table.enter(join(name), 0, heard_s)
    assert table.silent(10.0, 8.0, process("me")) == [process("a")]


def test_another_life_of_a_process_is_its_namesake() -> None:
    table = Membership(Plan(1, 8))
    table.enter(join("a"), 0, 0.0)
    assert table.incarnations.namesake(process("a", 2)) == process("a", 1)
    assert table.incarnations.namesake(process("a", 1)) is None
    assert table.incarnations.namesake(process("b", 2)) is None


def test_a_spare_comes_from_the_largest_stage_and_only_if_it_may_be_moved() -> None:
    table = Membership(Plan(3, 8))
    for name, stage in (("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 1)):
        table.enter(join(name), stage, 0.0)
    found = spare(table, [2], 2)
    assert found is not None
    assert table.known[found.process].member.stage == 1
    for entry in table.peers():
        entry.wish = entry.member.stage
    assert spare(table, [2], 2) is None


def test_those_who_load_together_begin_with_different_donors() -> None:
    table = Membership(Plan(2, 8))
    ready = [ProcessId(f"r{number:02}", 1) for number in range(12)]
    for donor in ready:
        known = table.enter(Join("peer", "v", "run", Member(donor, -1)), 1, 0.0)
        table.mark(known, MemberPhase.READY)
        known.version = 3
    firsts = []
    for number in range(24):
        loading = ProcessId(f"l{number:02}", 1)
        table.mark(table.enter(Join("peer", "v", "run", Member(loading, -1)), 1, 0.0), MemberPhase.LOADING)
        donors = table.donors(1, 3, loading)
        assert len({member.process for member in donors} & set(ready)) == DONORS_MAX
        firsts.append(donors[0].process)
    assert [firsts.count(donor) for donor in ready] == [2] * 12
    assert table.donors(1, 4, loading) == table.donors(0, 3, loading) == ()


def settled(*sizes: int, rebalance_s: float = 60.0, boundary_bytes: int = 0) -> Membership:
    """So many ready peers on each stage, which came at second 0."""
    table = Membership(Plan(len(sizes), 8, boundary_bytes=boundary_bytes))
    for stage, size in enumerate(sizes):
        for number in range(size):
            wish = Join("peer", "v", "run", member(f"p{stage}-{number:03}", -1), 1.0, rebalance_s, upload_rate=1e6)
            known = table.enter(wish, stage, 0.0)
            table.mark(known, MemberPhase.READY)
            known.version = 4
    return table


def test_a_newcomer_that_loads_keeps_nobody_from_moving_but_counts_for_its_stage() -> None:
    table = settled(1, 3)
    table.mark(table.enter(join("late"), 0, 100.0), MemberPhase.LOADING)
    assert better_placed(table, 4, 100.0) == [], "with it the stages are as even as they can be"
    table.mark(table.enter(join("later"), 1, 100.0), MemberPhase.LOADING)
    [move] = better_placed(table, 4, 100.0)
    assert (move.process.name, move.stage) == ("p1-000", 0)


def test_the_last_ready_peer_stays_whoever_is_loading_beside_it() -> None:
    table = settled(1, 1)
    for number in range(4):
        table.mark(table.enter(join(f"late{number}"), 1, 0.0), MemberPhase.LOADING)
    assert better_placed(table, 4, 100.0) == []
    table.mark(table.known[process("late0")], MemberPhase.READY)
    assert better_placed(table, 4, 100.0) == [], "it has another version"


def test_one_in_twenty_may_move_in_a_period() -> None:
    few, many = settled(2, 8), settled(20, 80)
    for table in (few, many):
        assert better_placed(table, 4, 59.0) == [], "nobody has stayed for a period"
        table.moved_s = 100.0
        assert better_placed(table, 4, 111.0) == []
    assert better_placed(few, 4, 159.0) == []
    assert better_placed(few, 4, 160.0) != []
    assert better_placed(many, 4, 112.0) != [], "60 s / (100 peers / 20)"


@pytest.mark.parametrize("rebalance_s", [5e-324, 1e-6, 1.0])
def test_a_peer_that_wants_to_be_moved_all_the_time_neither_fails_nor_has_others_moved_sooner(
    rebalance_s: float,
) -> None:
    table = settled(4, 20, boundary_bytes=1000)
    [usual] = better_placed(table, 4, 61.0)
    restless = table.enter(replace(join("restless"), rebalance_s=rebalance_s, upload_rate=1e6), 1, 0.0)
    table.mark(restless, MemberPhase.LOADING)
    [move] = better_placed(table, 4, 61.0)
    assert (move.process, move.stage) == (usual.process, usual.stage)
