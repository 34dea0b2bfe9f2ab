"""The costs of Table 9: the paper's rows are what it multiplies, and the reliable setup is where the hours are from."""

from __future__ import annotations

import pytest

from experiments.swarm_costs.cases import (
    DATA_PARALLEL,
    DOLLARS,
    HOURS,
    RELIABLE,
    SETUPS,
    SHARE,
    THROUGHPUT,
    data_parallel,
    in_swarm,
    rows,
    scenario,
    sequences_of,
)


def test_the_file_is_of_the_papers_batch_and_the_papers_dollars_are_hours_by_price() -> None:
    scene = scenario(SETUPS[0])
    assert scene.model.microbatches * sequences_of(scene) == 4096
    assert RELIABLE.dollars == pytest.approx(1374, abs=0.5)
    assert [setup.dollars for setup in SETUPS] == pytest.approx([1037, 497.8], abs=0.5)


def test_operations_are_those_of_the_layers() -> None:
    scene = scenario(SETUPS[0])
    tokens = 512 * sequences_of(scene)
    layer = 2 * 12 * 1024**2 * tokens + 4 * 512 * 1024 * tokens  # matrices, and attention
    assert scene.model.forward_flops == pytest.approx(6 * layer, rel=2e-3)


@pytest.mark.extended
def test_a_swarm_is_below_what_its_devices_compute_and_the_rows_follow_from_it() -> None:
    found = {(each.setting, each.policy, each.metric): each.mean for each in rows(range(1), 48, ("swarmflow",))}
    assert found[RELIABLE.name, DATA_PARALLEL, HOURS] == pytest.approx(RELIABLE.hours)
    for setup in SETUPS:
        rate = found[setup.name, "swarmflow", THROUGHPUT]
        assert rate == in_swarm(scenario(setup, 48), "swarmflow", 0) < data_parallel(setup)
        hours = found[setup.name, "swarmflow", HOURS]
        assert hours * rate == pytest.approx(RELIABLE.hours * data_parallel(RELIABLE))
        assert found[setup.name, "swarmflow", DOLLARS] == pytest.approx(hours * setup.dollars_an_hour)
        assert found[setup.name, "swarmflow", SHARE] == pytest.approx(hours * setup.dollars_an_hour / RELIABLE.dollars)
