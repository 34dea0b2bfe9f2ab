"""The JSON log: what docs/json-log.md says, one step a line, whole lines only."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from swarmflow.core.protocol.messages import StepResult
from swarmflow.core.protocol.types import Epoch
from tests.disks import small_disk
from trainers.steplog import StepLog

DOCS = Path(__file__).parents[2] / "docs" / "json-log.md"
RESULT = StepResult(1, Epoch(0, 7), 5.25, 4096, 0.9, 1.5, 3e-4, 8, (2, 2, 1), 3, validation_loss=5.5, kept=(10, 256))


def logged(path: Path, *results: StepResult) -> list[dict[str, object]]:
    log = StepLog(path)
    for result in results:
        log.write(result)
    log.close()
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_fields_are_those_of_the_docs(tmp_path: Path) -> None:
    [line] = logged(tmp_path / "run.jsonl", RESULT)
    documented = re.findall(r"^\| `(\w+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(line) == set(documented)
    assert (line["step"], line["version"], line["peers"], line["retries"]) == (7, 8, [2, 2, 1], 3)
    [without] = logged(tmp_path / "other.jsonl", replace(RESULT, validation_loss=None, kept=()))
    assert set(documented) - set(without) == {"validation_loss", "kept"}


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    diverged = replace(RESULT, loss=math.nan, grad_norm=math.inf, validation_loss=math.nan)
    [line] = logged(tmp_path / "run.jsonl", diverged)
    assert (line["loss"], line["grad_norm"], line["validation_loss"]) == (None, None, None)


def test_a_torn_last_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    logged(path, RESULT)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 8, "lo')
    lines = logged(path, replace(RESULT, epoch=Epoch(0, 8)))
    assert [line["step"] for line in lines] == [7, 8]


def test_a_step_that_is_told_again_after_a_restart_has_one_line(tmp_path: Path) -> None:
    """A leader that takes over tells the last step again, to a trainer that may have been started again meanwhile."""
    path = tmp_path / "run.jsonl"
    steps = [replace(RESULT, epoch=Epoch(0, step), seconds=0.5 + step) for step in range(200)]
    logged(path, *steps[:150])
    lines = logged(path, replace(steps[148], term=4), replace(steps[149], term=4), steps[150], steps[150])
    assert [line["step"] for line in lines] == list(range(151))
    assert [line["step"] for line in logged(path, *steps[149:160])] == list(range(160))


def test_a_step_that_is_done_again_has_another_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first, second = RESULT, replace(RESULT, epoch=Epoch(0, 8))
    logged(path, first, second)
    again = replace(first, epoch=Epoch(1, 7), seconds=first.seconds + 1e-6)
    lines = logged(path, again, again, replace(second, seconds=0.7))
    assert [(line["step"], line["seconds"]) for line in lines] == [(7, 0.9), (8, 0.9), (7, 0.900001), (8, 0.7)]
    assert len(logged(path, first)) == 5, "what counts is the last line of a step"


def test_a_validation_that_comes_with_what_is_told_again_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    without = replace(RESULT, validation_loss=None)
    lines = logged(path, without, without, RESULT, without, RESULT)
    assert [line.get("validation_loss") for line in lines] == [None, 5.5]


def test_foreign_and_long_lines_are_no_steps(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    logged(path, RESULT)
    with path.open("a", encoding="utf-8") as file:
        file.write("# a note\n[1]\n" + "x" * 100_000 + "\n")
    log = StepLog(path)
    log.write(RESULT)
    log.write(RESULT)
    log.close()
    assert path.read_text(encoding="utf-8").count('"step": 7,') == 2, "the first line is out of sight"


def test_a_full_disk_ends_no_run_and_no_line_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        path = disk.path / "run.jsonl"
        log = StepLog(path)
        log.write(RESULT)
        disk.fill()
        whole = path.read_bytes()
        for step in range(8, 48):
            log.write(replace(RESULT, epoch=Epoch(0, step)))
        assert path.read_bytes().startswith(whole)
        assert path.read_bytes().endswith(b"\n"), "no half of a line"
        disk.empty()
        log.flush()
        log.close()
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == list(range(7, 48))
    assert len([record for record in caplog.records if "is tried again" in record.message]) == 1


def test_a_file_that_was_deleted_is_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "logs" / "run.jsonl"
    log = StepLog(path)
    log.write(RESULT)
    shutil.rmtree(path.parent)
    log.write(replace(RESULT, epoch=Epoch(0, 8)))
    log.close()
    assert [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()] == [8]
    assert ["was deleted: it is written anew" in record.message for record in caplog.records] == [True]


def test_a_pipe_gets_every_line_once_and_holds_up_nothing_while_nobody_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    log = StepLog(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    steps = 1000
    for step in range(steps):
        log.write(replace(RESULT, epoch=Epoch(0, step)))
    assert "is tried again" in caplog.text, "more than a pipe holds"
    got = b""
    while got.count(b"\n") < steps:
        got += os.read(reader, 1 << 20)
        log.flush()
    log.close()
    os.close(reader)
    assert [json.loads(line)["step"] for line in got.splitlines()] == list(range(steps))
    assert path.is_fifo()
    logged_to = StepLog(Path(os.devnull))
    logged_to.write(RESULT)
    logged_to.close()
