"""Views of runs for the tests, and what a terminal of a given size shows of them."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType


def peer(number: int, phase: str = "serving", **changed: object) -> dict[str, Any]:
    summary = {"microbatches": 10 * number, "tokens": 1000 * number, "compute_s": 2.0, "memory_bytes": 500_000_000}
    values: dict[str, Any] = {"id": f"peer{number:02d}.0001", "phase": phase, "version": 12, "capacity": 8}
    return {**values, "held": 3, "queued": 1, "address": "10.0.0.7", "summary": summary, **changed}


def view(*stages: list[dict[str, Any]], **changed: object) -> dict[str, Any]:
    values: dict[str, Any] = {
        "run": "shakespeare",
        "run_id": "id",
        "phase": "running",
        "waiting_for": "",
        "waiting_s": 0.0,
        "step": 12,
        "version": 12,
        "durable_version": 8,
        "steps": 1000,
        "loss": 2.31,
        "tokens_per_s": 8120.0,
        "step_seconds": 1.2,
        "left_s": 820.0,
        "microbatches": 16,
        "stages": [{"stage": number, "peers": peers} for number, peers in enumerate(stages)],
        "trainers": [{"id": "first1.0001", "name": "first", "leads": True, "address": "10.0.0.1"}],
        "hops": [[0, 0, "peer01.0001", "done"]],
        "links": [],
    }
    return {**values, **changed}


def drawn(picture: RenderableType, width: int, rows: int = 50, *, colour: bool = False) -> str:
    """Return what a terminal of this size shows."""
    file = io.StringIO()
    console = Console(file=file, width=width, height=rows, force_terminal=colour, no_color=not colour)
    console.print(picture)
    return file.getvalue()
