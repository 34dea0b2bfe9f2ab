"""The stages of a running swarm's peers: cheap, few moves, and whoever is fixed stays."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.protocol.actions import PlanStages
from swarmflow.core.protocol.types import MeasuredLink
from swarmflow.planning.link_tables import link_tables
from swarmflow.planning.stage_choice import NEAR, plan_stages
from tests.planning.instances import cheapest, problem

FAST, SLOW = 5e6, 5e5  # in bytes/s
NEWCOMER = -1


def two_regions(
    serves: tuple[int, ...], stages: int, fixed: tuple[int, ...] = (), gradient: int = 4_000_000
) -> PlanStages:
    """Peers that are in one of two regions by turns, in a run whose sums are large beside its activations."""
    count = len(serves)
    links = [
        MeasuredLink(one, other, *((0.001, FAST) if one % 2 == other % 2 else (0.02, SLOW)))
        for one in range(count)
        for other in range(one)
    ]
    return PlanStages(
        1, links, serves, tuple(peer in fixed for peer in range(count)), 16, 1 << 16, (gradient,) * stages
    )


def test_each_region_serves_a_stage_and_as_few_move_as_can() -> None:
    planned = plan_stages(two_regions((0, 0, 0, 0, 1, 1), 2))
    assert planned.stages == (0, 1, 0, 1, 0, 1), "two move; three would if the regions were exchanged"
    assert 4 * planned.planned_s < planned.staying_s
    assert plan_stages(two_regions((1, 0, 1, 0, 1, 0), 2)).stages == (1, 0, 1, 0, 1, 0), "it is as cheap as it can be"


def test_if_nobody_moves_newcomers_go_where_few_are_to_the_nearest() -> None:
    planned = plan_stages(two_regions((0, 0, 1, 1, NEWCOMER, NEWCOMER), 2))
    assert planned.staying[:4] == (0, 0, 1, 1)
    assert sorted(planned.staying[4:]) == [0, 1]
    assert planned.planned_s < planned.staying_s


def test_a_link_is_as_an_end_says_else_as_the_other_and_else_as_the_median_one() -> None:
    links = [MeasuredLink(0, 1, 0.1, 1e6), MeasuredLink(1, 0, 0.2, 2e6), MeasuredLink(2, 0, 0.3, 6e6)]
    latency_s, rates = link_tables(4, links)
    assert (rates[0, 1], rates[1, 0], rates[2, 0], rates[0, 2]) == (1e6, 2e6, 6e6, 6e6)
    assert (rates[1, 3], latency_s[1, 3]) == (2e6, 0.2)


def test_newcomers_go_where_their_region_is() -> None:
    assert plan_stages(two_regions((0, 1, 0, 1, NEWCOMER, NEWCOMER), 2)).stages == (0, 1, 0, 1, 0, 1)


def test_who_is_left_over_stays_or_goes_where_few_are_to_the_nearest() -> None:
    assert plan_stages(two_regions((0, 1, 0, 1, NEWCOMER), 2)).stages[4] == 0
    assert plan_stages(two_regions((0, 1, 0, 1, 1), 2)).stages == (0, 1, 0, 1, 1)
    stages = plan_stages(two_regions((0, 1, 0, 1, 0, 0, 0), 2)).stages
    assert sorted(Counter(stages).values()) == [3, 4]


def test_who_is_fixed_stays_and_a_stage_may_have_more_of_them_than_others_have_peers() -> None:
    planned = plan_stages(two_regions((0, 0, 0, 0, 0, 1), 2, fixed=(0, 1, 2, 3)))
    assert planned.stages == (0, 0, 0, 0, 1, 1)
    assert plan_stages(two_regions((0, 0, 0, 0, 0, 1), 2, fixed=(0, 1, 2, 3, 4, 5))).stages == (0, 0, 0, 0, 0, 1)
    nobody = plan_stages(two_regions((0, 0, 0, NEWCOMER), 3, fixed=(0, 1, 2)))
    assert nobody.stages[:3] == (0, 0, 0), "two stages have no peer, and one is free"
    assert nobody.stages[3] in (1, 2)


def test_a_stage_without_a_peer_makes_the_present_stages_impossible() -> None:
    assert plan_stages(two_regions((0, 0, 0, 0), 2)).staying_s == math.inf


@pytest.mark.parametrize("seed", range(4))
def test_it_is_next_to_the_cheapest(seed: int) -> None:
    instance = problem(2, 3, seed)
    asked = PlanStages(
        1,
        [
            MeasuredLink(one, other, instance.latency_s[one][other], instance.bytes_per_s[one][other])
            for one in range(6)
            for other in range(6)
            if one != other
        ],
        tuple(Random(seed).sample((0, 0, 1, 1, 2, 2), 6)),
        (False,) * 6,
        1,
        round(2 * instance.activation_bytes),
        tuple(map(round, instance.gradient_bytes)),
    )
    assert plan_stages(asked).planned_s <= NEAR * 1.02 * cheapest(instance) + 1e-6


@settings(max_examples=50)
@given(st.lists(st.integers(NEWCOMER, 2), min_size=3, max_size=9), st.sets(st.integers(0, 8)), st.integers(0, 1 << 24))
def test_every_peer_has_a_stage_and_the_plan_is_no_dearer_than_the_present_one(
    serves: list[int], fixed: set[int], gradient: int
) -> None:
    fixed_ones = tuple(peer for peer in fixed if peer < len(serves) and serves[peer] != NEWCOMER)
    planned = plan_stages(two_regions(tuple(serves), 3, fixed_ones, gradient))
    assert len(planned.stages) == len(serves)
    assert all(0 <= stage < 3 for stage in planned.stages)
    assert all(planned.stages[peer] == serves[peer] for peer in fixed_ones)
    counts = Counter(planned.stages)
    if len(counts) == 3 and not fixed_ones:
        assert max(counts.values()) - min(counts.values()) <= 1
    before = Counter(serves)
    if NEWCOMER not in before and len(set(before.values())) == 1 and len(before) == 3:
        assert planned.planned_s <= NEAR * planned.staying_s
