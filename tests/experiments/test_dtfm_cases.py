"""DT-FM's five cases: what the paper says of them, and a pipeline whose time can be added up by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from experiments.dtfm_cases.cases import CASES, FOLDER, DtfmCase, Model, petaflop, scenario
from experiments.dtfm_cases.measure import (
    FIRST,
    PAPER,
    POLICIES,
    SLOWDOWN,
    SPEEDUP,
    Part,
    measure,
    rows,
    seconds,
    whole,
)
from swarmflow.simulator.scenario import load

SHORT = Model(24, 32)
PASS_S = 3 * 2048 * (24 * 2048**2 + 4 * 2048**2) / 62.5e12  # forward, of 3 layers; backward takes three times as long


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_64_machines_are_where_the_case_has_them(case: DtfmCase) -> None:
    found = scenario(case, Model(), "swarm", 1)
    assert (found.peer_count, found.model.stages, found.model.microbatches) == (64, 8, 1024)
    assert Counter(peer.region[0] for peer in found.peers) == {place.name: place.machines for place in case.places}
    assert sorted(Counter(peer.stage for peer in found.peers).items()) == [(stage, 8) for stage in range(8)]
    for table in case.links:
        assert [list(row) for row in zip(*table, strict=True)] == [list(row) for row in table], "both ways alike"
    assert scenario(case, Model(), "swarm", 1) == found != scenario(case, Model(), "swarm", 2)
    planned = scenario(case, Model(), "dtfm", 1)
    assert planned.peers == tuple(replace(peer, stage=-1) for peer in found.peers), "the same machines"


def test_the_tables_are_the_papers() -> None:
    cities = [place.name for place in CASES[4].places]
    latency_s, mbps = CASES[4].links
    seoul, london, virginia = (cities.index(name) for name in ("Seoul", "London", "Virginia"))
    assert (latency_s[seoul][london], mbps[seoul][london]) == (0.238, 342)
    assert (latency_s[virginia][virginia], mbps[virginia][virginia]) == (0.005, 2000)
    assert min(min(row) for row in mbps) == 335
    states = [place.name for place in CASES[3].places]
    latency_s, mbps = CASES[3].links
    california, virginia = states.index("California"), states.index("Virginia")
    assert (latency_s[california][virginia], mbps[california][virginia]) == (0.059, 1050)


def test_the_file_alone_is_case_5() -> None:
    alone, case = load(FOLDER / "scenario.toml"), scenario(CASES[4], Model(), "dtfm", 0)
    assert (alone.model, alone.network, alone.run) == (case.model, case.network, case.run)
    assert (alone.latency, alone.bandwidth) == (case.latency, case.bandwidth)
    assert {place.link_mbps for place in CASES[4].places} == {alone.peers[0].up_mbps.at(0.5)}


def test_a_model_has_the_paper_s_operations_and_numbers() -> None:
    deep = scenario(CASES[0], Model(40, 4096, 4), "gpipe", 0).model
    assert deep.microbatches == 4096
    assert deep.parameters == 5 * 12 * 2048**2, "of a stage, in 4 bytes each"
    assert deep.forward_flops == pytest.approx(PASS_S * 62.5e12 * 5 / 3, rel=1e-3)
    assert petaflop(Model(24, 1024)) == pytest.approx(3 * 8 * 1024 * PASS_S * 62.5e12 / 1e15, rel=1e-3)


def test_an_iteration_in_a_data_center_takes_what_can_be_added_up() -> None:
    whole = scenario(CASES[0].thinned(4), SHORT, "gpipe", 3, 1)
    whole = replace(whole, run=replace(whole.run, split_backward=False))
    (took_s,) = seconds(whole, 3, "gpipe")
    # Two pipelines of 16 microbatches and 8 stages; seven ways there and back; 302 MB of gradients, a half each way.
    rate = 25e9 / 8
    expected_s = (16 + 7) * 4 * PASS_S + 14 * 2048**2 * 2 / rate + 3 * 12 * 2048**2 * 2 / rate
    assert took_s == pytest.approx(expected_s, rel=0.03)


def test_rows_compare_with_case_1_and_with_gpipe() -> None:
    part = Part(SHORT, (CASES[0].thinned(8), CASES[4].thinned(8)), ("gpipe", "dtfm"), 1, 1)
    found = {(row.setting[:6], row.policy, row.metric): row.mean for row in rows(part, measure(part, 0))}
    first = {(case, policy): found[case, policy, FIRST] for case in ("Case 1", "Case 5") for policy in part.policies}
    least_s = min(first["Case 1", policy] for policy in part.policies)
    assert first["Case 5", "dtfm"] < first["Case 5", "gpipe"]
    for (case, policy), took_s in first.items():
        assert found[case, policy, SLOWDOWN] == pytest.approx(took_s / least_s)
        assert found[case, policy, SPEEDUP] == pytest.approx(first[case, "gpipe"] / took_s)


def test_the_paper_s_figures_are_of_what_is_measured() -> None:
    small, large = whole(Model(), 3), whole(Model(40, 4096), 1)
    assert (small.cases, small.policies) == (CASES, POLICIES)
    measured = {
        (case.number, part.model.layers, part.model.batch, policy)
        for part in (small, large)
        for case in part.cases
        for policy in part.policies
    }
    assert {key[:4] for key in PAPER} <= measured
    assert (small.repetitions, small.iterations, large.iterations) == (3, 2, 1)
    assert small.setting(CASES[0]) == "Case 1. Data center on demand"
    assert large.setting(CASES[4]) == "Case 5. World-wide geo-distributed, 40 layers, batch 4096"
