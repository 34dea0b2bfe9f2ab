"""The JSON log: what docs/json-log.md says, one step a line, whole lines only."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

from swarmflow.core.messages import StepResult
from swarmflow.core.types import Epoch
from trainers.steplog import StepLog

DOCS = Path(__file__).parents[2] / "docs" / "json-log.md"
RESULT = StepResult(1, Epoch(0, 7), 5.25, 4096, 0.9, 1.5, 3e-4, 8, (2, 2, 1), 3, validation_loss=5.5)


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
    [without] = logged(tmp_path / "other.jsonl", replace(RESULT, validation_loss=None))
    assert set(documented) - set(without) == {"validation_loss"}


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
