"""`swarmflow chaos`: a real swarm under a seeded schedule of faults, what it has learnt, and what that has cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.swarm.commands import started, swarmflow

pytestmark = [pytest.mark.swarm, pytest.mark.slow]

STEPS = 12
FINISH_S = 150.0


def test_a_swarm_under_faults_learns_what_one_process_learns(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = [
        *("--rates", "0.2", "--steps", str(STEPS), "--accumulate", "fp32", "--no-trainers", "--trainers", "1"),
        *("--folder", str(tmp_path / "runs"), "--json", str(figures)),
    ]
    with started(tmp_path / "chaos.log", "chaos", *options) as chaos:
        assert chaos.process.wait(FINISH_S) == 0, chaos.tail()
    [run] = json.loads(figures.read_text(encoding="utf-8"))["runs"]
    assert (run["seed"], run["rate"], run["failure"], run["same"]) == (0, 0.2, None, True)
    assert run["commits"] == STEPS
    assert sum(run["faults"][kind] for kind in ("kills", "stops", "drains") if kind in run["faults"]) > 0
    assert run["compute_seconds"] > 0
    assert 0 <= run["lost_with_the_dead"] + run["unused_by_the_living"] < 1
    assert "same as one plain process" in chaos.log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rates", "0.1,2"], "--rates 0.1,2: give numbers from 0 to 1"),
        (["--peers", "2"], "--peers 2: each of the 3 stages needs one"),
        (["--accumulate", "fp32", "--codec", "blockwise8"], "--codec blockwise8 needs --accumulate exact"),
    ],
)
def test_what_cannot_be_run_is_one_line(options: list[str], words: str) -> None:
    assert words in swarmflow("chaos", *options).complaint
