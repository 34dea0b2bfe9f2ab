"""The report of attacks: a table for people, and all figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from swarmflow.chaos.attacks.contest import AttackResult
from swarmflow.errors import CheckpointError
from swarmflow.ownership import is_object_with

is_attack_report = is_object_with("attacks", "microbatches")
_NAMED_MAX = 6  # counts of a cell


def show(results: list[AttackResult], console: Console) -> None:
    """Print a row for each attack."""
    columns = ("attack", "sent", "what became of it", "learnt", "before", "during", "after", "ended", "again", "MiB")
    table = Table(*columns, title="Attacks", box=SIMPLE_HEAD, padding=0)
    for result in results:
        learnt = "-" if result.same is None else "same" if result.same else "DIFFERENT"
        before = f"{result.step_s['before']:.2f} s" if "before" in result.step_s else "-"
        slower = [f"x{result.slower(each):.2f}" if each in result.step_s else "-" for each in ("during", "after")]
        numbers = (str(len(result.ended)), str(len(result.rejoined)), str(result.grown_bytes >> 20))
        table.add_row(result.kind.name, _cell(result.sent), _cell(result.counted), learnt, before, *slower, *numbers)
    console.print(table)


def _cell(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return "\n".join(f"{count} {name}" for name, count in ordered[:_NAMED_MAX]) or "-"


def write(results: list[AttackResult], settings: Mapping[str, int], path: Path) -> None:
    """Write all figures as one JSON object (docs/chaos.md). Raises CheckpointError when the disk refuses."""
    fields = {**settings, "attacks": [_fields(result) for result in results]}
    try:
        path.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"--json {path} cannot be written: {error.strerror}") from None


def _fields(result: AttackResult) -> dict[str, Any]:
    return {
        "kind": result.kind.name,
        "by": result.kind.by,
        "sent": result.sent,
        "counted": result.counted,
        "same": result.same,
        "step_seconds": result.step_s,
        "ended": result.ended,
        "joined_again": result.rejoined,
        "grown_bytes": result.grown_bytes,
        "failure": result.failure,
    }
