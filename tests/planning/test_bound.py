"""The lower bound against the least cost by trying everything, and where it is known to be reached."""

from __future__ import annotations

from random import Random

import pytest

from swarmflow.planning.arrangement import Problem
from swarmflow.planning.bound import lower_bound_s
from swarmflow.planning.strategies import drawn
from tests.planning.instances import cheapest, in_places, problem


@pytest.mark.parametrize(("pipelines", "stages", "spare"), [(1, 4, 0), (2, 3, 0), (2, 3, 1), (3, 2, 0), (2, 4, 0)])
@pytest.mark.parametrize("seed", range(2))
def test_nothing_costs_less(pipelines: int, stages: int, spare: int, seed: int) -> None:
    given = problem(pipelines, stages, seed, spare)
    assert 0 < lower_bound_s(given) <= cheapest(given) * (1 + 1e-12)


@pytest.mark.parametrize("activation_bytes", [1e4, 1e6, 1e8])
@pytest.mark.parametrize("gradient_bytes", [1e4, 1e6, 1e8])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_costs_less_where_devices_share_places(
    activation_bytes: float, gradient_bytes: float, seed: int
) -> None:
    place = [Random(seed).choice([0, 1, 2]) for _ in range(6)]
    given = in_places(2, 3, place, seed, activation_bytes, gradient_bytes)
    assert 0 < lower_bound_s(given) <= cheapest(given) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_no_arrangement_of_many_devices_costs_less(seed: int) -> None:
    random = Random(seed)
    place = [random.choice([0, 1, 2, 3]) for _ in range(20)]
    given = in_places(5, 4, place, seed, 10 ** random.uniform(4, 8), 10 ** random.uniform(4, 8))
    bound_s = lower_bound_s(given)
    assert bound_s <= min(drawn(given, random).cost_s for _ in range(100))


def test_it_is_reached_where_large_gradients_stay_in_two_places_of_as_many_devices_as_a_stage() -> None:
    given = in_places(4, 2, [0, 1, 0, 1, 0, 1, 0, 1], 1, 1e5, 1e9)
    assert lower_bound_s(given) == pytest.approx(given.cost_s([(0, 2, 4, 6), (1, 3, 5, 7)]))


def test_it_is_reached_where_each_pipeline_has_a_place() -> None:
    given = in_places(2, 4, [0, 1, 0, 1, 0, 1, 0, 1], 1, 1e9, 1e5)
    assert lower_bound_s(given) == pytest.approx(given.cost_s([(0, 1), (2, 3), (4, 5), (6, 7)]), rel=0.01)


def test_stages_of_unlike_sizes_are_bounded_by_the_least_and_by_who_serves_the_largest() -> None:
    given = Problem([[0.0] * 4] * 4, [[1e6] * 4] * 4, 2, 2, 0.0, [1e6, 4e6])
    assert lower_bound_s(given) == pytest.approx(2 * 2.0)  # half of 4 MB to the other one and back
