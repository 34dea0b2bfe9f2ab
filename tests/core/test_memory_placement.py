"""Peers serve the stages for which they have memory, and no others: at their join, in moves, and where one is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.membership.levelling import PlacedPeer, best_stage, level
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import Membership
from swarmflow.core.membership.placement import better_placed, place, spare
from swarmflow.core.membership.rebalance import Move, StagePeer, rebalance
from swarmflow.core.membership.settings import refusal
from swarmflow.core.membership.step_estimate import StageDemand, power_of_one
from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.types import Member, Plan
from tests.core.samples import process
from tests.core.test_leader import SETTINGS

LARGE, SMALL = 0, 1  # of the stages
PLAN = Plan(2, 8, costs=(3.0, 1.0), reduced_bytes=(300, 100))


def join(name: str, unfit: tuple[int, ...] = (), speed: float = 1.0) -> Join:
    return Join("peer", "v", "run", Member(process(name), -1), speed, 1.0, unfit=unfit)


def enter(table: Membership, name: str, stage: int, unfit: tuple[int, ...] = (), ready: bool = True) -> None:
    known = table.enter(join(name, unfit), stage, 0.0)
    table.mark(known, MemberPhase.READY if ready else MemberPhase.LOADING)
    known.version = 0


def test_the_largest_empty_stage_is_filled_first_and_one_that_is_about_as_large_in_its_turn() -> None:
    assert place(Membership(Plan(3, 8, reduced_bytes=(100, 300, 290))), -1)[0] == 1
    assert place(Membership(Plan(3, 8, reduced_bytes=(290, 300, 100))), -1)[0] == 0


def test_a_newcomer_is_placed_where_it_has_memory() -> None:
    table = Membership(PLAN)
    assert place(table, -1, unfit=(LARGE,)) == (SMALL, "nobody serves it")
    enter(table, "a", SMALL, (LARGE,))
    assert place(table, -1, unfit=(LARGE,)) == (SMALL, "its memory has no room for those that nobody serves")
    enter(table, "b", LARGE)
    assert place(table, -1)[0] == LARGE, "it has three times the load"
    assert place(table, -1, unfit=(LARGE,))[0] == SMALL


def test_the_estimate_of_a_step_is_asked_of_the_stages_that_fit_alone() -> None:
    needs = [StageDemand(9.0, 0.0, 0.0, 0.0), StageDemand(1.0, 0.0, 0.0, 0.0)]
    powers = [power_of_one(1.0, 4.0, 1e6)] * 2
    newcomer = power_of_one(1.0, 4.0, 1e6)
    assert best_stage(needs, powers, newcomer)[0] == LARGE
    assert best_stage(needs, powers, newcomer, unfit=(LARGE,))[0] == SMALL


def test_nobody_is_moved_to_a_stage_that_it_cannot_hold() -> None:
    needs = [StageDemand(9.0, 0.0, 0.0, 0.0), StageDemand(1.0, 0.0, 0.0, 0.0)]
    power = power_of_one(1.0, 4.0, 1e6)

    def stages(*unfit: int) -> list[list[PlacedPeer]]:
        small = [PlacedPeer(process(f"s{number}"), power, True, frozenset(unfit)) for number in range(3)]
        return [[PlacedPeer(process("l"), power, True)], small]

    assert [move.stage for move in level(needs, stages(), 1)] == [LARGE]
    assert level(needs, stages(LARGE), 1) == []
    alike = [[StagePeer(peer.process, 1.0, True, peer.unfit) for peer in row] for row in stages(LARGE)]
    assert rebalance((9.0, 1.0), alike) is None
    table = Membership(PLAN)
    enter(table, "l", LARGE)
    for number in range(3):
        enter(table, f"s{number}", SMALL, (LARGE,) if number else ())
    assert [move.process for move in better_placed(table, 0, 100.0)] == [process("s0")], "it alone fits"


def test_a_chain_of_moves_fills_a_stage_that_the_spare_peers_cannot_hold() -> None:
    """Of three stages nobody serves the first; who could hold it is alone at the second."""
    table = Membership(Plan(3, 8))
    enter(table, "able", 1)
    enter(table, "s0", 2, (0,))
    enter(table, "s1", 2, (0,))
    move = spare(table, [0], 0)
    assert move == Move(process("s1"), 1, "a peer of it has memory for one where nobody is left")
    mover = table.known[move.process]
    table.mark(mover, MemberPhase.LOADING)
    table.move(mover, 1)
    assert spare(table, [0], 0) is None, "it still loads from the one that it relieves"
    table.mark(mover, MemberPhase.READY)
    assert spare(table, [0], 0) == Move(process("able"), 0, "nobody is left there")


def test_a_load_elsewhere_holds_nothing_up_and_who_was_put_out_relieves_nobody() -> None:
    table = Membership(Plan(3, 8))
    enter(table, "alone", 1)
    enter(table, "loads", 1, (0,), ready=False)
    assert spare(table, [0], 0) is None, "who could go is about to be relieved"
    for number in range(2):
        enter(table, f"s{number}", 2)
    assert spare(table, [0], 0) == Move(process("s1"), 0, "nobody is left there")
    barred = table.enter(join("barred", (0,)), 2, 0.0)
    table.mark(barred, MemberPhase.BARRED)
    table.leave(process("s0"))
    table.leave(process("s1"))
    assert spare(table, [0], 0) is None


def test_without_anybody_who_could_hold_it_a_stage_waits() -> None:
    table = Membership(PLAN)
    enter(table, "a", SMALL, (LARGE,))
    enter(table, "b", SMALL, (LARGE,))
    assert spare(table, [LARGE], LARGE) is None


@pytest.mark.parametrize(("unfit", "refused"), [((), False), ((0,), False), ((0, 1), True)])
def test_who_has_memory_for_no_stage_is_refused(unfit: tuple[int, ...], refused: bool) -> None:
    message = join("a", unfit)
    reason = refusal(replace(SETTINGS, software="v"), PLAN, process("a"), message)
    assert (reason == "its memory has no room for any stage of this run") is refused


def test_who_asks_for_a_stage_that_it_has_no_memory_for_is_refused() -> None:
    message = Join("peer", "v", "run", Member(process("a"), LARGE), unfit=(LARGE,))
    reason = refusal(replace(SETTINGS, software="v"), PLAN, process("a"), message)
    assert reason == "--stage 0: its memory has no room for that one"
