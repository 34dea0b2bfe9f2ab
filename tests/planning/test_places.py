"""The strategy `places`: beside every arrangement there is, beside DT-FM's search, and on its world-wide case."""

from __future__ import annotations

from random import Random

import pytest

from experiments.dtfm_cases.cases import CASES
from experiments.dtfm_cases.plans import planning_problem
from swarmflow.planning import dtfm, places
from swarmflow.planning.arrangement import Arrangement, Problem
from swarmflow.planning.bound import lower_bound_s
from swarmflow.planning.strategies import STRATEGIES
from tests.further import seeds
from tests.planning.instances import cheapest, in_places, problem


def whole(given: Problem, found: Arrangement) -> bool:
    """Whether each stage of each pipeline has a device of its own, and pinned ones are at their stages."""
    devices = [device for pipeline in found.pipelines for device in pipeline]
    assert len(found.pipelines) == given.pipelines
    assert all(len(pipeline) == given.stages for pipeline in found.pipelines)
    assert all(found.stages[device] == stage for device, stage in given.pinned.items())
    return len(set(devices)) == given.pipelines * given.stages


@pytest.mark.parametrize(
    ("pipelines", "stages", "spare", "pinned"),
    [(1, 4, 0, None), (2, 3, 0, None), (2, 3, 1, None), (2, 3, 0, {0: 2, 3: 0}), (3, 2, 0, {4: 1}), (2, 4, 0, None)],
)
@pytest.mark.parametrize("seed", range(2))
def test_it_is_next_to_the_cheapest(
    pipelines: int, stages: int, spare: int, pinned: dict[int, int] | None, seed: int
) -> None:
    given = problem(pipelines, stages, seed, spare, pinned)
    found = places.arrange(given, Random(seed))
    assert whole(given, found)
    assert given.evaluated <= places.EVALUATIONS_MAX
    assert found.cost_s <= 1.02 * cheapest(given)


@pytest.mark.parametrize("gradient_bytes", [1e5, 1e7, 1e9])
@pytest.mark.parametrize("seed", range(2))
def test_where_devices_share_places_it_is_as_good_as_dtfm_with_a_fifth_of_the_evaluations(
    gradient_bytes: float, seed: int
) -> None:
    place = [0] * 5 + [1] * 4 + [2] * 3
    Random(3).shuffle(place)
    given, other = (in_places(3, 4, place, seed, 1e6, gradient_bytes) for _ in range(2))
    ours, theirs = places.arrange(given, Random(0)), dtfm.arrange(other, Random(0))
    assert whole(given, ours)
    assert ours.cost_s <= 1.001 * theirs.cost_s
    assert other.evaluated >= 4 * given.evaluated


@pytest.mark.parametrize(("microbatches", "of_the_bound"), [(None, 1.16), (1, 1.05)])
@pytest.mark.parametrize("seed", seeds(2, 3))
def test_eight_cities(microbatches: float | None, of_the_bound: float, seed: int) -> None:
    given = planning_problem(CASES[4], microbatches, seed)
    assert places.arrange(given, Random(seed)).cost_s <= of_the_bound * lower_bound_s(given)
    assert given.evaluated <= 500


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("pipelines", "stages", "place"),
    [(1, 1, [0]), (1, 1, [0, 0]), (2, 1, [0, 0, 0]), (3, 2, [0] * 6), (1, 13, [0] * 13)],
)
def test_devices_that_are_all_alike_are_arranged_somehow(
    strategy: str, pipelines: int, stages: int, place: list[int]
) -> None:
    given = in_places(pipelines, stages, place, 0, 1e6, 1e6)
    assert whole(given, STRATEGIES[strategy](given, Random(0)))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("pinned", [dict.fromkeys(range(3), 0), dict.fromkeys(range(1, 5), 1)])
def test_of_more_pinned_devices_than_a_stage_takes_some_are_spare(strategy: str, pinned: dict[int, int]) -> None:
    given = problem(3, 2, 1, spare=2, pinned=pinned) if len(pinned) > 3 else problem(2, 2, 1, spare=1, pinned=pinned)
    found = STRATEGIES[strategy](given, Random(0))
    devices = [device for pipeline in found.pipelines for device in pipeline]
    assert len(set(devices)) == given.pipelines * given.stages
    assert {found.stages[device] for device in pinned if device in found.stages} == set(pinned.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_seed_gives_the_same_plan(strategy: str) -> None:
    one, other = (STRATEGIES[strategy](problem(2, 3, 7, spare=2), Random(5)) for _ in range(2))
    assert one == other
