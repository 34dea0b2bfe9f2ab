"""What a scenario's time goes to: the bottleneck is named, and the shares are all of the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.simulator.causes import COMPUTE, LINKS, NAMES, TIMER, Cause
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.report import SimulationReport
from tests.further import more, seeds
from tests.simulation.samples import CHURN, simulated

EVEN = """
[run]
iterations = 3
[model]
stages = STAGES
microbatches = MICROBATCHES
activation_bytes = 1_000_000
parameters = PARAMETERS
[[peers]]
count = PEERS
spread = true
forward_s = FORWARD
up_mbps = UP
"""
USUAL = {"STAGES": 3, "MICROBATCHES": 24, "PARAMETERS": 1000, "PEERS": 3, "FORWARD": 1.0, "UP": 800}
CASES: dict[str, dict[str, float]] = {
    "compute": {},
    "links": {"FORWARD": 0.01, "UP": 8},
    "all-reduce": {"FORWARD": 0.01, "PEERS": 6, "PARAMETERS": 100_000_000},
    "pipeline fill": {"STAGES": 16, "PEERS": 16, "MICROBATCHES": 2},
}


def even(**other: float) -> str:
    text = EVEN
    for name, value in {**USUAL, **other}.items():
        text = text.replace(name, str(value))
    return text


def add_up(report: SimulationReport) -> None:
    for row in report.iterations:
        parts = [row.compute_s, row.links_s, row.reduce_s, row.fill_s, row.timer_s]
        assert min(parts) >= 0.0
        assert sum(parts) == pytest.approx(row.seconds)


@pytest.mark.parametrize("policy", ["swarmflow", "gpipe", *more("swarm", "gwtf")])
@pytest.mark.parametrize("bottleneck", CASES)
def test_what_plainly_dominates_is_named(tmp_path: Path, bottleneck: str, policy: str) -> None:
    _, report = simulated(tmp_path, even(**CASES[bottleneck]), policy)
    found = report.bottleneck
    assert found is not None
    assert found.name == bottleneck
    assert found.shares[bottleneck] > 0.8
    assert sum(found.shares.values()) == pytest.approx(1.0)
    add_up(report)


def test_a_full_pipeline_and_an_empty_one_are_told_apart_by_the_microbatches(tmp_path: Path) -> None:
    """Four even stages and n microbatches: n + 3 turns, in n of which a peer is busy. Passes are whole there."""
    for microbatches in (1, 4, 12):
        text = even(STAGES=4, PEERS=4, MICROBATCHES=microbatches).replace("forward_s", "capacity = 20\nforward_s")
        text = text.replace("[run]", "[run]\nsplit_backward = false")
        found = simulated(tmp_path, text, "gpipe")[1].bottleneck
        assert found is not None
        assert found.shares["pipeline fill"] == pytest.approx(3 / (microbatches + 3), abs=0.03)


def test_the_stage_of_the_slowest_peers_is_named(tmp_path: Path) -> None:
    text = even().replace("parameters", "costs = [1, 1, 5]\nparameters")
    found = simulated(tmp_path, text)[1].bottleneck
    assert found is not None
    assert (found.name, found.stage) == ("compute", 2)


@pytest.mark.parametrize("seed", seeds(1, 1))
def test_the_shares_are_all_of_the_time_under_churn_too(tmp_path: Path, seed: int) -> None:
    _, report = simulated(tmp_path, CHURN, seed=seed)
    assert any(row.deaths for row in report.iterations)
    add_up(report)
    shares = report.as_json()["bottleneck"]["shares"]  # type: ignore[index]
    assert list(shares) == list(NAMES.values())


def test_a_path_follows_the_last_cause_from_the_mark_on() -> None:
    clock = Clock()
    seen: list[Cause] = []

    def arrive() -> None:
        clock.after(3.0, lambda: seen.append(clock.cause), COMPUTE)

    clock.after(1.0, lambda: clock.after(2.0, arrive, LINKS))
    clock.after(1.5, clock.mark)
    clock.after(4.0, lambda: seen.append(clock.cause), TIMER)
    assert clock.run(lambda: len(seen) == 2, 100.0)
    assert seen[0] == Cause(1.5, 4.0)
    assert seen[1] == Cause(1.5, 6.0, compute_s=3.0, links_s=1.5)
    assert seen[1].shares(2.0, 4.5) == (2.0, 1.5, 0.0, 1.0, 0.0)
