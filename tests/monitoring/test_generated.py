"""The rules, the dashboards and docs/metrics.md are those that follow from the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.monitoring.generate import GRAFANA, generated

ROOT = Path(__file__).parents[2]
FILES = generated(ROOT)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_generated_file_is_up_to_date(path: Path) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == FILES[path], "run `make generate`"


def test_there_is_no_dashboard_that_nothing_writes() -> None:
    assert {path.relative_to(ROOT) for path in (ROOT / GRAFANA).iterdir()} == {
        path for path in FILES if path.parent == GRAFANA
    }
