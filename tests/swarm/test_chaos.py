"""`swarmflow chaos`: a real swarm under a seeded schedule of faults, what it has learnt, and what that has cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.swarm.commands import started, swarmflow

pytestmark = [pytest.mark.swarm, pytest.mark.slow, pytest.mark.extended]

STEPS = 8
FINISH_S = 240.0


@pytest.mark.exhaustive
def test_a_swarm_under_faults_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ("--rates", "0,0.2", "--steps", str(STEPS), "--folder", str(tmp_path / "runs"), "--json", str(figures))
    with started(tmp_path / "chaos.log", "chaos", *options) as chaos:
        assert chaos.process.wait(FINISH_S) == 0, chaos.tail()
    undisturbed, disturbed = json.loads(figures.read_text(encoding="utf-8"))["runs"]
    assert (undisturbed["seed"], undisturbed["faults"], undisturbed["commits"]) == (None, {}, STEPS)
    assert (undisturbed["recomputed_hops"], undisturbed["lost_with_the_dead"]) == (0, 0)
    assert (disturbed["seed"], disturbed["rate"], disturbed["failure"]) == (0, 0.2, None)
    assert sum(disturbed["faults"].get(kind, 0) for kind in ("kills", "stops", "drains")) > 0
    assert undisturbed["same"]
    assert disturbed["same"]
    assert disturbed["largest_difference"] == 0
    assert disturbed["compute_seconds"] > 0
    assert 0 <= disturbed["lost_with_the_dead"] + disturbed["unused_by_the_living"] < 1
    log = chaos.log.read_text(encoding="utf-8")
    assert "undisturbed: same as one plain process" in log
    assert "seed-0-rate-0.2: same as the undisturbed swarm" in log


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--rates", "0.1,2"], "--rates 0.1,2: give numbers from 0 to 1"),
        (["--peers", "2"], "--peers 2: each of the 3 stages needs one"),
        (["--accumulate", "fp32", "--codec", "blockwise8"], "--codec blockwise8 needs --accumulate exact"),
    ],
)
def test_what_cannot_be_run_is_one_line(options: list[str], expected: str) -> None:
    assert expected in swarmflow("chaos", *options).complaint
