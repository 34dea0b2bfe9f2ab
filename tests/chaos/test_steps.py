"""Step logs of several trainers, read while they are written."""

from __future__ import annotations

import json
from pathlib import Path

from swarmflow.chaos.steps import StepLogs


def line(step: int, time: float, seconds: float = 1.0, loss: float = 5.0) -> str:
    return json.dumps({"step": step, "time": time, "seconds": seconds, "loss": loss}) + "\n"


def test_a_commit_that_two_trainers_wrote_is_one(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    logs = StepLogs()
    assert logs.read([one, other]) == []
    one.write_text(line(0, 10.0) + line(1, 11.0))
    other.write_text(line(0, 10.1))
    assert [step["step"] for step in logs.read([one, other])] == [0, 1]
    with other.open("a") as file:
        file.write(line(1, 11.1) + line(2, 12.0))
    assert [step["step"] for step in logs.read([one, other])] == [2]
    assert len(logs.commits) == 3
    assert logs.newest is not None
    assert logs.newest["step"] == 2


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    logs, whole = StepLogs(), line(0, 1.0)
    log.write_text(whole[:9])
    assert logs.read([log]) == []
    log.write_text(whole)
    assert len(logs.read([log])) == 1


def test_a_step_that_was_done_again_counts_twice_and_its_last_loss_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(line(0, 1.0) + line(1, 2.0, loss=4.0) + line(1, 9.0, seconds=2.0, loss=4.5))
    logs = StepLogs()
    logs.read([log])
    assert len(logs.commits) == 3
    assert logs.losses() == {0: 5.0, 1: 4.5}
