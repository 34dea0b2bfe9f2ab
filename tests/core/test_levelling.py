"""Placement by the estimate of a step: near the best arrangement there is, and it comes to rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swarmflow.core.membership.levelling import STEP_RATIO_MAX, PlacedPeer, best_stage, level
from swarmflow.core.membership.step_estimate import (
    StageDemand,
    StagePower,
    demands,
    power_of_one,
    stage_times,
    step_s,
    together,
)
from swarmflow.core.protocol.types import Plan
from tests.core.samples import process

Stages = list[list[PlacedPeer]]
HOME = 25e6  # bytes/s
NEAR = 1.4  # times the best arrangement: the smoothed estimate counts stages that are not the busiest
WORTH = 0.8
# Of two as fast computers that could help the third stage, one has a slow connection, which is too slow for its sums.
AS_FAST = (
    [StageDemand(1.0, 1.0, 0.0, 0.0), StageDemand(1.0, 1.0, 6.0, 0.0), StageDemand(8.0, 1.0, 0.0, 5.0)],
    [power_of_one(speed, 1.0, rate) for speed, rate in ((1, 1), (1, 1), (0.75, 1), (2, 1), (2, 0.5), (0.5, 1))],
)

demand = st.builds(StageDemand, st.floats(1.0, 9.0), st.floats(1.0, 9.0), st.floats(0.0, 9.0), st.floats(0.0, 9.0))
power = st.builds(power_of_one, st.floats(0.5, 2.0), st.floats(1.0, 4.0), st.floats(0.5, 2.0))


def estimate_s(needs: Sequence[StageDemand], stages: Sequence[Sequence[StagePower]]) -> float:
    return step_s([stage_times(need, together(powers)) for need, powers in zip(needs, stages, strict=True)])


def joined(needs: Sequence[StageDemand], powers: Sequence[StagePower]) -> list[list[StagePower]]:
    """Return the peers as the leader places them, one after the other: an empty stage first."""
    stages: list[list[StagePower]] = [[] for _ in needs]
    for one in powers:
        empty = [stage for stage in stages if not stage]
        if empty:
            empty[0].append(one)
        else:
            stages[best_stage(needs, [together(stage) for stage in stages], one)[0]].append(one)
    return stages


def placed(stages: Sequence[Sequence[StagePower]]) -> Stages:
    return [
        [PlacedPeer(process(f"p{s}-{n:03}"), one, movable=True) for n, one in enumerate(row)]
        for s, row in enumerate(stages)
    ]


def levelled(needs: Sequence[StageDemand], stages: Stages, at_once: int) -> tuple[Stages, int]:
    """Make the moves that are asked for, until there are none; how many there were."""
    count = 0
    while moves := level(needs, stages, at_once):
        assert len(moves) <= at_once
        for move in moves:
            movers = [peer for row in stages for peer in row if peer.process == move.process]
            stages = [[peer for peer in row if peer.process != move.process] for row in stages]
            stages[move.stage] += movers
            count += 1
            assert count <= 100, "it never comes to rest"
    return stages, count


def powers_of(stages: Stages) -> list[list[StagePower]]:
    return [[peer.power for peer in row] for row in stages]


@settings(max_examples=60)
@given(st.lists(demand, min_size=2, max_size=3), power, st.integers(3, 8))
def test_equal_peers_are_placed_near_the_best_arrangement_there_is(
    needs: list[StageDemand], one: StagePower, peers: int
) -> None:
    stages, _ = levelled(needs, placed(joined(needs, [one] * peers)), at_once=8)
    best_s = min(
        estimate_s(needs, [[one] * size for size in sizes])
        for sizes in itertools.product(range(1, peers), repeat=len(needs))
        if sum(sizes) == peers
    )
    assert estimate_s(needs, powers_of(stages)) <= NEAR * best_s


@settings(max_examples=60)
@given(st.lists(demand, min_size=2, max_size=3), st.lists(power, min_size=3, max_size=6))
@example(*AS_FAST)
def test_after_levelling_no_single_move_is_worth_it(needs: list[StageDemand], powers: list[StagePower]) -> None:
    stages, _ = levelled(needs, placed(joined(needs, powers)), at_once=8)
    before_s = estimate_s(needs, powers_of(stages))
    for one, other in itertools.permutations(range(len(needs)), 2):
        for peer in stages[one] if len(stages[one]) > 1 else ():
            moved = [[mate for mate in row if mate is not peer] for row in stages]
            moved[other].append(peer)
            assert estimate_s(needs, powers_of(moved)) >= WORTH * before_s


@settings(max_examples=100)
@given(
    st.lists(demand, min_size=4, max_size=4), st.lists(st.lists(power, min_size=1, max_size=6), min_size=4, max_size=4)
)
def test_it_comes_to_rest_and_the_estimate_falls_with_the_moves(
    needs: list[StageDemand], powers: list[list[StagePower]]
) -> None:
    before_s = estimate_s(needs, powers)
    stages, count = levelled(needs, placed(powers), at_once=100)
    assert all(stages)
    assert sorted(peer.process for row in stages for peer in row) == sorted(
        peer.process for row in placed(powers) for peer in row
    )
    if count:
        assert estimate_s(needs, powers_of(stages)) <= STEP_RATIO_MAX * before_s


def alike_best_s(needs: Sequence[StageDemand], one: StagePower, peers: int) -> float:
    """Return the estimate of the best arrangement of equal peers: the least peers that keep each pipeline time."""
    times = [[stage_times(need, together([one] * n)) for n in range(1, peers + 1)] for need in needs]
    least_s = math.inf
    for limit in {each.pipeline_s for row in times for each in row}:
        sizes = [next((n for n, each in enumerate(row) if each.pipeline_s <= limit), peers) for row in times]
        if sum(sizes) + len(sizes) <= peers:
            least_s = min(least_s, step_s([row[n] for row, n in zip(times, sizes, strict=True)]))
    return least_s


def slow_links(stages: int) -> Plan:
    """A model of 32 blocks behind 200 Mb/s, where embedding and head have as many parameters as 2.4 blocks."""
    blocks = [(32 + 4.8) / stages - 2.4 * (stage in (0, stages - 1)) for stage in range(stages)]
    costs = tuple(count + 2.4 * (stage == stages - 1) for stage, count in enumerate(blocks))
    return Plan(stages, 256, costs=costs, boundary_bytes=17_000_000, reduced_bytes=(round(16.2e9 / stages),) * stages)


@pytest.mark.parametrize("stages", range(4, 14))
def test_equal_peers_that_start_together_behind_slow_links_stand_within_a_tenth_of_the_best_arrangement(
    stages: int,
) -> None:
    one = power_of_one(16.0, 2, HOME)
    needs = demands(slow_links(stages), together([one] * 32))
    found = joined(needs, [one] * 32)
    assert estimate_s(needs, found) <= 1.1 * alike_best_s(needs, one, 32)
    assert level(needs, placed(found), 8) == [], "nothing is worth a move"


def test_where_connections_limit_the_ends_get_fewer_peers_although_they_compute_more() -> None:
    plan = Plan(4, 64, costs=(2.0, 1.0, 1.0, 2.0), boundary_bytes=10_000_000)
    slow, fast = power_of_one(100.0, 8, 1e6), power_of_one(0.1, 8, 1e12)
    assert [len(row) for row in joined(demands(plan, slow), [slow] * 12)] == [2, 4, 4, 2]
    assert [len(row) for row in joined(demands(plan, fast), [fast] * 12)] == [4, 2, 2, 4]


def test_with_a_delay_the_sums_take_their_share_of_the_connections() -> None:
    one = power_of_one(16.0, 2, HOME)
    plan = slow_links(9)
    needs = demands(replace(plan, delay=1), together([one] * 32))
    assert estimate_s(needs, joined(needs, [one] * 32)) <= 1.02 * alike_best_s(needs, one, 32)
    sums_s = 2 * 3 / 4 * plan.reduced_bytes[1] / HOME
    sent_s = 2 * plan.microbatches * plan.boundary_bytes / (4 * HOME)
    assert stage_times(needs[1], together([one] * 4)).pipeline_s == pytest.approx(sent_s + sums_s)
    assert stage_times(needs[1], together([one] * 4)).reduce_s == 0.0


def test_the_first_stage_of_a_long_pipeline_needs_memory_for_what_is_on_its_path() -> None:
    one = partial(power_of_one, 1e6, upload_rate=1e6)
    plan = Plan(16, 64, boundary_bytes=1_000_000)
    sizes = [[len(row) for row in joined(demands(plan, one(s)), [one(s)] * 48)] for s in (1.0, 100.0)]
    assert sizes[0][0] > sizes[1][0] < sizes[1][1]


@pytest.mark.parametrize(("microbatches", "sizes"), [(1600, [5, 10, 10, 5]), (64, [6, 9, 9, 6])])
def test_the_ends_of_a_pipeline_send_half_as_much_but_not_all_the_time(microbatches: int, sizes: list[int]) -> None:
    """Where a step has few microbatches, what the ends wait for the first one, or the last one, is a part of it."""
    one = power_of_one(1e6, 100, 625e3)
    needs = demands(Plan(4, microbatches, boundary_bytes=8 << 20), together([one] * 30))
    assert [len(row) for row in joined(needs, [one] * 30)] == sizes
    tensor_s = (8 << 20) / 625e3
    assert [need.idle_links_s / tensor_s for need in needs] == pytest.approx([5, 1, 3, 5])


def test_one_stage_alone_and_delayed_updates_leave_no_connection_idle() -> None:
    one = power_of_one(1e6, 100, 625e3)
    for plan in (Plan(1, 64, boundary_bytes=1), Plan(4, 64, boundary_bytes=1, delay=1)):
        assert all(need.idle_links_s == 0.0 for need in demands(plan, one))


def test_moves_and_their_reason() -> None:
    one = power_of_one(1.0, 100, 1.0)
    needs = [StageDemand(0.0, 12.0, 0.0, 0.0)] * 3
    stages = placed([[one], [one], [one] * 7])
    [first, second] = level(needs, stages, 2)
    assert [first.stage, second.stage] == [0, 1]
    assert first.reason == "the estimate of a step of 12 s falls to 4, by 4 moves"
    assert best_stage(needs, [together(powers) for powers in powers_of(stages)], one) == (
        0,
        "its 12 s a step, limited by connections, fall to 6",
    )


def test_a_peer_that_is_not_movable_and_the_last_of_a_stage_stay() -> None:
    one = power_of_one(1.0, 100, 1.0)
    needs = [StageDemand(9.0, 0.0, 0.0, 0.0), StageDemand(1.0, 0.0, 0.0, 0.0)]
    assert level(needs, placed([[one], [one]]), 8) == []
    pinned = [PlacedPeer(process(f"pinned{n}"), one, movable=False) for n in range(3)]
    assert level(needs, [placed([[one]])[0], pinned], 8) == []


def test_what_moves_gain_is_compared_with_the_time_on_links_too() -> None:
    needs = [StageDemand(8.0, 0.0, 0.0, 0.0)] * 2
    stages = placed([[power_of_one(1.0, math.inf, HOME)] * 5, [power_of_one(1.0, math.inf, HOME)] * 1])
    assert level(needs, stages, 1)
    assert level(needs, stages, 1, links_s=8.0), "8 s fall to 8/3, of 16"
    assert level(needs, stages, 1, links_s=100.0) == []


def test_links_of_a_newcomer_count_as_what_they_save_beyond_its_power() -> None:
    needs = [StageDemand(8.0, 0.0, 0.0, 0.0)] * 2
    powers = [together([power_of_one(1.0, math.inf, HOME)] * peers) for peers in (2, 3)]
    one = power_of_one(1.0, math.inf, HOME)
    assert best_stage(needs, powers, one)[0] == 0
    assert best_stage(needs, powers, one, gains=(0.0, 0.5))[0] == 0
    stage, reason = best_stage(needs, powers, one, gains=(0.0, 3.0))
    assert (stage, "links save 3 s" in reason) == (1, True)
