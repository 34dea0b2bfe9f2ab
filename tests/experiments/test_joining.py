"""Where candidates are put: the rules, and the gain that a stage's own assignment would have."""

from __future__ import annotations

from random import Random

import pytest

from experiments.flow.instance import Instance, symmetric
from swarmflow.core.routing.flow.joining import best_stage, most_utilised

pytest.importorskip("scipy", reason="the extra `experiments` is not installed")

from scipy.optimize import linear_sum_assignment

from experiments.flow.optimum import optimal_flows
from experiments.joining.placing import gain_of, joined


def swarm(seed: int) -> Instance:
    """Three stages of three relays and a data node that wants what the narrowest holds; 10 is a candidate."""
    random = Random(seed)
    stages = ((1, 2, 3), (4, 5, 6), (7, 8, 9))
    capacity = {i: random.randint(1, 3) for i in range(1, 10)}
    instance = Instance((0,), stages, capacity, symmetric(11, lambda: random.randint(1, 50)))
    return Instance((0,), stages, {**capacity, 0: instance.narrowest}, instance.cost)


@pytest.mark.parametrize("seed", range(5))
def test_the_gain_of_a_stage_is_that_of_its_best_assignment(seed: int) -> None:
    """The oracle: a unit a row, a slot a column; with one relay before and after, ends stay as they are."""
    instance = swarm(seed)
    narrow = Instance((0,), ((1,), (4, 5, 6), (7,)), {**instance.capacity, 1: 4, 7: 4, 0: 3}, instance.cost)
    cost, units = optimal_flows(narrow)
    wider = joined(narrow, 10, 2, 1)
    slots = [node for node in wider.stages[1] for _ in range(wider.capacity[node])]
    lines = [[instance.cost[1][node] + instance.cost[node][7] for node in slots] for _ in range(narrow.flow)]
    rows, columns = linear_sum_assignment(lines)
    ends = narrow.flow * (instance.cost[0][1] + instance.cost[7][0])
    best = sum(lines[r][c] for r, c in zip(rows, columns, strict=True)) + ends
    assert gain_of(narrow, units, 10, 2, 1, Random(seed)) == pytest.approx(cost - best)


@pytest.mark.parametrize("seed", range(5))
def test_no_stage_promises_more_than_the_optimum_gains(seed: int) -> None:
    instance = swarm(seed)
    cost, units = optimal_flows(instance)
    for stage in range(3):
        real = cost - optimal_flows(joined(instance, 10, 2, stage))[0]
        assert gain_of(instance, units, 10, 2, stage, Random(0)) <= real + 1e-6


def test_gwtf_goes_by_utilisation_and_ours_by_gain_unless_flows_are_missing() -> None:
    assert most_utilised([4, 4, 4], [8, 5, 16]).stage == 1
    assert best_stage([0.0, 1.0, 3.0], [4, 4, 4], [8, 5, 16], 4).stage == 2
    assert best_stage([0.0, 0.0, 0.0], [4, 4, 4], [8, 5, 16], 4).stage == 1
    assert best_stage([0.0, 1.0, 3.0], [4, 4, 4], [4, 5, 16], 9).stage == 0
