"""Where candidates are put: what the production rule says of each stage, and where its leader puts them."""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from experiments.flow.instance import Instance, symmetric
from swarmflow.core.routing.flow.joining import LinkSavings, StageLinks, saved_by_stage

pytest.importorskip("scipy", reason="the extra `experiments` is not installed")

from experiments.flow.optimum import optimal_flows
from experiments.joining.drawing import PlacingSetting, PlacingSwarm, draw, joined
from experiments.joining.placing import by_rule, in_a_swarm, most_utilised

CANDIDATE = 13


def swarm(seed: int) -> Instance:
    """Three stages of four relays and a data node that wants what the narrowest holds."""
    random = Random(seed)
    stages = ((1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12))
    capacity = {i: random.randint(1, 5) for i in range(1, 13)}
    instance = Instance((0,), stages, capacity, symmetric(14, lambda: random.randint(1, 50)))
    return Instance((0,), stages, {**capacity, 0: instance.narrowest}, instance.cost)


def result(work: Generator[None, None, LinkSavings]) -> LinkSavings:
    found: list[LinkSavings] = []

    def run() -> Generator[None, None, None]:
        found.append((yield from work))

    for _ in run():
        pass
    return found[0]


@pytest.mark.parametrize("seed", range(10))
def test_a_stage_saves_what_the_optimum_with_the_candidate_does(seed: int) -> None:
    """The oracle is HiGHS. The data node is a stage of one at either end."""
    instance = swarm(seed)
    layers = [(0,), *instance.stages, (0,)]
    costs = np.array(instance.cost)
    links = [costs[np.ix_(here, there)] for here, there in pairwise(layers)]
    capacity = [[instance.capacity[node] for node in layer] for layer in layers]
    own = [[instance.cost[CANDIDATE][node] for node in layer] for layer in layers]
    found = result(saved_by_stage(StageLinks(capacity, links, own, 3), 1000))
    cost, _ = optimal_flows(instance)
    assert found.flows == instance.flow
    assert found.path_s * found.flows == pytest.approx(cost)
    real = [cost - optimal_flows(joined(instance, CANDIDATE, 3, stage))[0] for stage in range(3)]
    assert [saved * found.flows for saved in found.saved_s[1:-1]] == pytest.approx(real, abs=1e-6)


def test_fewer_microbatches_than_the_stages_hold_are_fewer_flows() -> None:
    given = StageLinks([[4], [4]], [np.ones((1, 1))], [[1.0], [1.0]], 1)
    assert result(saved_by_stage(given, 3)) == LinkSavings(3, 1.0, (0.0, 0.0))
    assert result(saved_by_stage(StageLinks([[0], [4]], [np.ones((1, 1))], [[1.0], [1.0]], 1), 3)).flows == 1


def test_gwtf_goes_by_utilisation() -> None:
    assert most_utilised([4, 4, 4], [8, 5, 16]) == 1


def test_the_leader_of_a_simulated_swarm_places_candidates_as_well_as_the_greedy_optimum() -> None:
    whole = draw(PlacingSetting(3, (1, 5), (1, 100)), 0)
    stages = tuple(stage[:3] for stage in whole.instance.stages)
    kept = {node: whole.capacity[node] for stage in stages for node in stage}
    small = Instance((0,), stages, kept, whole.instance.cost)
    instance = Instance((0,), stages, {**kept, 0: small.narrowest}, small.cost)
    swarm = PlacingSwarm(instance, whole.candidates[:2], whole.capacity)
    before = optimal_flows(instance)[0]
    best = before - optimal_flows(by_rule(swarm, "greedy optimum", 0))[0]
    assert best > 0
    assert before - optimal_flows(in_a_swarm(swarm, 0))[0] >= 0.9 * best
