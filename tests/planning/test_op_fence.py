"""OP-Fence: each cluster of machines serves stages that follow each other."""

from __future__ import annotations

from random import Random

import pytest

from experiments.dtfm_cases.cases import CASES
from experiments.dtfm_cases.plans import planning_problem
from swarmflow.planning import op_fence
from swarmflow.planning.strategies import drawn
from tests.planning.instances import in_places, problem


@pytest.mark.parametrize("seed", range(4))
def test_each_place_serves_a_part_of_the_pipelines(seed: int) -> None:
    """Six places of four machines, in any order: six stages of four pipelines, each in one place."""
    place = Random(seed).sample([number for number in range(6) for _ in range(4)], 24)
    found = op_fence.arrange(in_places(4, 6, place, seed, 1e6, 1e8), Random(seed))
    places = [{place[device] for device in group} for group in found.groups]
    assert [len(each) for each in places] == [1] * 6
    assert set.union(*places) == set(range(6))


def test_places_that_are_no_multiple_of_a_stage_keep_connected_parts() -> None:
    """Places of six and of three machines, three stages of three: the larger place serves two stages in a row."""
    place = [0, 1, 0, 0, 1, 0, 0, 1, 0]
    found = op_fence.arrange(in_places(3, 3, place, 0, 1e6, 1e8), Random(0))
    assert [len({place[device] for device in group}) for group in found.groups] == [1, 1, 1]
    assert place[found.groups[1][0]] == 0, "its two stages follow each other"


@pytest.mark.parametrize(("spare", "pinned"), [(0, None), (2, None), (0, {0: 2, 4: 2, 5: 0})])
def test_every_stage_has_its_devices_and_pinned_ones_theirs(spare: int, pinned: dict[int, int] | None) -> None:
    given = problem(2, 3, 1, spare, pinned)
    found = op_fence.arrange(given, Random(0))
    assert len({device for pipeline in found.pipelines for device in pipeline}) == 6
    assert all(found.stages[device] == stage for device, stage in (pinned or {}).items())


def test_the_world_wide_case_is_cheaper_than_at_random() -> None:
    given = planning_problem(CASES[4], None, 0)
    assert 1.3 * op_fence.arrange(given, Random(0)).cost_s < drawn(given, Random(0)).cost_s
