"""The least time of a step of Llama-3-8B: of a cut that adds up, and less where links are faster."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from experiments.llama_8b.sizes import BLOCKS, Bound, bound, cut, scenario
from swarmflow.simulator.distributions import Constant
from swarmflow.simulator.scenario import Scenario
from swarmflow.simulator.scenario_hardware import ScenarioHardware


def least(of: Scenario) -> Bound:
    return bound(of, ScenarioHardware(of, 0, Random(0)))


@pytest.mark.parametrize("stages", [2, 5, 12, 32])
def test_the_cut_has_all_blocks_and_all_parameters(stages: int) -> None:
    of = scenario(stages)
    assert sum(cut(stages)) == BLOCKS
    assert isinstance(of.model.parameters, tuple)
    assert sum(of.model.parameters) == pytest.approx(8.03e9, rel=1e-3)
    assert of.model.forward_flops * stages == pytest.approx(scenario(12).model.forward_flops * 12)


def test_the_bound_is_what_two_stages_of_one_peer_each_take() -> None:
    """Worked out by hand: 256 tensors of 17.03 MB at 25 MB/s on either uplink, or the larger stage."""
    of = scenario(2)
    of = replace(of, peers=(replace(of.peers[0], count=2),))
    found = least(of)
    assert found.peers == (1, 1)
    tensor_s = 67_108_864 / 3.94 / 25e6
    model_s = 4 * 5.8e12 * 12 / 80e12  # the whole model, forward, once more, and backward
    assert found.fill_s == pytest.approx(2 * (tensor_s + 0.03) + model_s, rel=1e-6)
    larger_s = model_s * max(of.model.costs) / sum(of.model.costs)
    assert found.busy_s == pytest.approx(256 * max(tensor_s, larger_s), abs=0.2)


def test_faster_links_and_more_peers_make_it_less() -> None:
    of = scenario(12)
    faster = replace(of, peers=(replace(of.peers[0], up_mbps=Constant(1000.0), down_mbps=Constant(1000.0)),))
    more = replace(of, peers=(replace(of.peers[0], count=64),))
    assert least(faster).step_s < least(of).step_s / 3
    assert least(more).busy_s < least(of).busy_s
    assert sum(least(of).peers) <= 32
