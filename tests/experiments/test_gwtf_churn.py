"""The settings of GWTF's tables: what is drawn, and what is the paper's."""

from __future__ import annotations

from random import Random

import pytest

from experiments.gwtf_churn.pairs import mean, ratio
from experiments.gwtf_churn.paper import THROUGHPUT, TIME, reported
from experiments.gwtf_churn.setting import ChurnSetting, links, scenario, settings
from experiments.gwtf_churn.steps import STEPS
from experiments.gwtf_optimal.__main__ import scenario as optimal
from swarmflow.simulator.scenario_hardware import ScenarioHardware


def test_there_are_twelve_settings_named_as_in_the_paper() -> None:
    names = [setting.name for setting in settings()]
    assert len(set(names)) == 12
    assert names[0] == "LLaMA-like, Homogeneous 0%"
    assert names[-1] == "GPT-like, Heterogeneous 20%"


def test_the_paper_s_figures_are_found() -> None:
    assert reported("swarm-restart", "LLaMA-like", TIME, "Homogeneous 10%") == 1.26
    assert reported("gwtf", "GPT-like", THROUGHPUT, "Heterogeneous 20%") == 2.39
    assert reported("swarm", "LLaMA-like", TIME, "Homogeneous 10%") is None


def test_the_scenario_has_two_data_nodes_and_sixteen_relays() -> None:
    found = scenario(ChurnSetting("LLaMA-like", True, 0.1), 3)
    hardware = ScenarioHardware(found, 3, Random(3))
    names = [hardware.add_peer(number) for number in range(found.peer_count)]
    capacities = [hardware.profiles[name].capacities[0] for name in names]
    assert capacities[:2] == [4, 4]
    assert set(capacities[2:]) == {1, 2, 3}
    assert [hardware.persistent(number) for number in range(18)] == [True, True, *[False] * 16]
    # 3 blocks of 55.8 GFLOP forward, at 0.4 of 19.2 TFLOP/s shared by 18 nodes on 5 GPUs.
    assert abs(hardware.compute_s("p5", 1, "forward") - 3 * 55.8e9 / (0.4 * 19.2e12 * 5 / 18)) < 1e-3


def test_trainers_are_on_the_machines_of_the_data_nodes() -> None:
    latency_s, mbps = links(2, 18, Random(1))
    assert len(latency_s) == len(mbps) == 20
    assert latency_s[0][2] == mbps[0][2] == 0.0, "trainer 0 and peer 0"
    assert latency_s[0][7] == latency_s[2][7] > 0
    others = [mbps[one][other] for one in range(2, 20) for other in range(2, 20) if one != other]
    assert min(others) >= 50
    assert max(others) <= 500
    assert all(mbps[one][other] == mbps[other][one] for one in range(20) for other in range(20))
    assert links(2, 18, Random(1)) == (latency_s, mbps) != links(2, 18, Random(2))


def test_the_optimum_has_three_peers_a_stage() -> None:
    found = optimal(4)
    assert (found.trainers.count, found.peer_count, found.model.stages, found.model.microbatches) == (3, 18, 6, 12)
    assert found.latency is not None
    assert found.latency[2][5] == 0.0, "trainer 2 and peer 2"
    assert optimal(4) == found != optimal(5)


def test_pairs_are_drawn_together() -> None:
    theirs = [1.0, 2.0, 5.0, 3.0]
    halved = ratio([value / 2 for value in theirs], theirs)
    assert (halved.value, halved.low, halved.high) == pytest.approx((0.5, 0.5, 0.5))
    spread = mean(theirs)
    assert spread.value == pytest.approx(2.75)
    assert spread.low < spread.value < spread.high
    with pytest.raises(ValueError, match="no pairs"):
        ratio([1.0], theirs)


@pytest.mark.extended
def test_the_steps_switch_off_what_they_say() -> None:
    _, without, relayed, recomputed = STEPS[:4]
    setting = next(setting for setting in settings() if setting.heterogeneous and setting.chance == 0.1)
    reports = [step.report(setting, 0) for step in (without, relayed, recomputed)]
    assert [report.counts.get("detours", 0) > 0 for report in reports] == [False, True, True]
    assert [report.over(lambda row: row.twice_s)[0] > 0 for report in reports] == [False, False, True]
