"""The metrics of a whole swarm: what the view holds, with a bounded number of series, whatever peers report."""

from __future__ import annotations

import math
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.monitoring.families import FAMILIES
from swarmflow.monitoring.swarm_metrics import PEER_PHASES, PEERS_MAX, REACHES, RUN_PHASES, swarm_metrics
from tests.monitoring.views import peer, view

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(of: dict[str, Any]) -> Samples:
    """Every sample by its name and labels; two of the same are an error."""
    found: Samples = {}
    for family in text_string_to_metric_families(swarm_metrics(of).decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, key
            found[key] = sample.value
    return found


def value(found: Samples, name: str, /, **labels: str) -> float:
    return found[f"swarmflow_swarm_{name}", frozenset(labels.items())]


def test_a_run_and_its_stages_are_added_up() -> None:
    found = samples(view([peer("a"), peer("b", wasted_s=3.0)], [{**peer("c"), "version": 11, "phase": "loading"}]))
    assert value(found, "run_info", name="shakespeare", run="0123456789abcdef") == 1.0
    assert (value(found, "phase", phase="running"), value(found, "phase", phase="gathering")) == (1.0, 0.0)
    assert (value(found, "version"), value(found, "loss"), value(found, "trainers")) == (12.0, 2.5, 1.0)
    assert math.isnan(value(found, "left_seconds"))
    assert value(found, "peers", stage="0", phase="serving") == 2.0
    assert value(found, "peers", stage="1", phase="serving") == 0.0
    assert value(found, "stage_wasted_seconds", stage="0") == 4.5
    assert value(found, "stage_capacity_microbatches", stage="0") == 8.0
    assert value(found, "stage_lowest_version", stage="1") == 11.0
    assert value(found, "reach_peers", reach="public") == 3.0
    assert value(found, "peer_compute_seconds_total", peer="a", stage="0") == 8.0


def test_the_series_are_those_of_the_table() -> None:
    of = view([peer("a")], links=[["t", "a", 3, 0.5]])
    names = {family.name for family in text_string_to_metric_families(swarm_metrics(of).decode())}
    assert {name.removesuffix("_info") for name in names} == {family.full_name for family in FAMILIES}


def test_the_phases_are_those_of_the_machines() -> None:
    assert set(RUN_PHASES) == set(map(str, LeaderPhase))
    shown_as_waiting = MemberPhase.MEASURING
    assert set(PEER_PHASES) == {"serving", "draining", *map(str, MemberPhase)} - {MemberPhase.GONE, shown_as_waiting}


def test_links_are_shown_by_the_stage_that_they_lead_to() -> None:
    links = [["a", "c", 3, 0.5], ["b", "c", 3, 2.5], ["a", "d", 1, 0.25], ["t", "a", 4, None], ["a", "left", 1, 9.0]]
    found = samples(view([peer("a"), peer("b")], [peer("c"), peer("d")], links=links))
    assert value(found, "stage_median_link_seconds", stage="1") == 0.5
    assert value(found, "stage_slowest_link_seconds", stage="1", sender="b", receiver="c") == 2.5
    assert not [key for key in found if key[0].endswith("link_seconds") and ("stage", "0") in key[1]]


def test_half_of_the_links_may_be_slow_and_the_median_is_a_fast_one() -> None:
    """As with two peers a stage of which one is slow: an alert compares the slowest link with the median."""
    links = [["a", "c", 3, 0.1], ["a", "d", 3, 2.0], ["b", "c", 3, 0.1], ["b", "d", 3, 2.0]]
    found = samples(view([peer("a"), peer("b")], [peer("c"), peer("d")], links=links))
    assert value(found, "stage_median_link_seconds", stage="1") == 0.1


def test_ten_thousand_peers_have_a_bounded_number_of_series() -> None:
    stages = [[peer(f"{stage}-{n}", port=9400 if n % 2 else 0) for n in range(1250)] for stage in range(8)]
    before = samples(view(*stages))
    assert len(before) < 2000
    own = {dict(labels)["peer"] for name, labels in before if name == "swarmflow_swarm_peer_microbatches_total"}
    assert len(own) == PEERS_MAX + 1
    assert value(before, "peer_microbatches_total", peer="other", stage="other") == 10.0 * (10_000 - PEERS_MAX)
    assert value(before, "stage_microbatches", stage="3") == 12_500.0
    numbers = {int(name.partition("-")[2]) for name in own - {"other"}}
    assert all(number % 2 == 0 for number in numbers), "peers that Prometheus cannot reach come first"
    after = samples(view(*([*stages[:7], stages[7][1:]])))
    again = {dict(labels)["peer"] for name, labels in after if name == "swarmflow_swarm_peer_microbatches_total"}
    assert again == own, "a peer that leaves moves no other one in or out, unless it had series itself"


@pytest.mark.parametrize(
    "hostile",
    [
        {"summary": {"compute_s": "9" * 100, "sent_bytes": [1], "reach": {"a": 1}, "metrics_port": "80"}},
        {"summary": {"compute_s": 1e308, "memory_bytes": 10**400, "sent_bytes": True, "reach": 'x"}\n'}},
        {"summary": "none", "phase": 7, "version": None, "capacity": {}},
        {"summary": None, "phase": 'x"} 1\nswarmflow_swarm_version 99', "id": 'a"} 1\nswarmflow_swarm_version 99\n'},
        {"id": "x" * 10_000},
        {"id": None},
        {"id": [1]},
    ],
)
def test_what_a_peer_makes_up_changes_no_other_series(hostile: dict[str, Any]) -> None:
    honest = samples(view([peer("a")]))
    found = samples(view([peer("a"), {**peer("b"), **hostile}]))
    assert value(found, "version") == 12.0
    assert value(found, "peer_compute_seconds_total", peer="a", stage="0") == 8.0
    assert value(found, "stage_compute_seconds", stage="0") in (8.0, 16.0)
    new = {dict(labels).get("peer", "") for _, labels in found.keys() - honest.keys()}
    assert all(len(name) <= 64 for name in new)


def test_two_peers_that_claim_one_name_have_one_series() -> None:
    found = samples(view([peer("a"), peer("a", compute_s=100.0)]))
    assert value(found, "stage_compute_seconds", stage="0") == 108.0
    assert value(found, "peer_compute_seconds_total", peer="a", stage="0") in (8.0, 100.0)


@pytest.mark.parametrize("broken", [{}, {"stages": None}, {"stages": [1, {"peers": 2}, {"peers": [3]}], "links": [4]}])
def test_a_view_of_another_version_is_no_mistake(broken: dict[str, Any]) -> None:
    found = samples(broken)
    assert math.isnan(value(found, "version"))


def test_all_reaches_are_there_from_the_start() -> None:
    found = samples(view())
    assert {value(found, "reach_peers", reach=reach) for reach in REACHES} == {0.0}
    assert sum(value(found, "phase", phase=phase) for phase in RUN_PHASES) == 1.0
