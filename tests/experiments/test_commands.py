"""Which commands the experiments have, how they say so, and what is taken for a fault of one."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments.common.commands import FOLDER, experiments, fault
from experiments.common.every import BESIDE
from experiments.common.rows import row

GOOD = asdict(row("a", "swarmflow", "Seconds", [1.0, 2.0], 0.5))


def test_experiments_are_the_folders_with_a_command(tmp_path: Path) -> None:
    for name in ("b", "a", "common"):
        (tmp_path / name).mkdir()
    for name in ("b", "a"):
        (tmp_path / name / "__main__.py").touch()
    assert experiments(tmp_path) == ["a", "b"]
    assert {"gwtf_churn", "swarm_rebalance", "swarm_utilisation"} <= set(experiments())


@pytest.mark.parametrize("name", [*experiments(), *BESIDE])
def test_each_says_how_it_is_run(name: str) -> None:
    text = (FOLDER / name.split(".")[0] / "README.md").read_text(encoding="utf-8")
    assert find_spec(f"experiments.{name}") is not None
    assert f"python -m experiments.{name}" in text
    assert f"`python -m experiments.{name}`" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_good_rows_have_no_fault() -> None:
    assert fault(json.dumps([GOOD, {**GOOD, "metric": "Bytes", "paper": None}])) is None


@pytest.mark.parametrize(
    "rows",
    [
        [],
        {"rows": [GOOD]},
        [{**GOOD, "more": 1}],
        [{key: value for key, value in GOOD.items() if key != "n"}],
        [{**GOOD, "mean": float("nan")}],
        [{**GOOD, "std": "1"}],
        [{**GOOD, "paper": float("inf")}],
        [{**GOOD, "n": 0}],
        [GOOD, GOOD],
    ],
)
def test_faults_of_rows_are_seen(rows: object) -> None:
    assert fault(json.dumps(rows)) is not None
