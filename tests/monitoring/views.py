"""Views of swarms for the tests of metrics."""

from __future__ import annotations

from typing import Any


def peer(name: str, *, port: int = 0, **summary: Any) -> dict[str, Any]:  # noqa: ANN401
    """A peer that serves, and its summary with these values."""
    return {
        "id": name,
        "name": f"Qm{name}",
        "phase": "serving",
        "version": 12,
        "capacity": 4,
        "held": 2,
        "queued": 1,
        "speed": 10.5,
        "address": "10.0.0.7",
        "summary": {
            "microbatches": 10,
            "tokens": 640,
            "compute_s": 8.0,
            "used_s": 6.0,
            "wasted_s": 1.5,
            "sent_bytes": 1000,
            "received_bytes": 2000,
            "memory_bytes": 500_000_000,
            "loading_bytes": 0,
            "loading_total_bytes": 0,
            "metrics_port": port,
            "reach": "public",
            **summary,
        },
    }


def view(*stages: list[dict[str, Any]], **values: Any) -> dict[str, Any]:  # noqa: ANN401
    """A view of a run at step 12 with these peers."""
    return {
        "time": 1.0,
        "run": "shakespeare",
        "run_id": "0123456789abcdef",
        "phase": "running",
        "waiting_for": "",
        "waiting_s": 0.0,
        "step": 12,
        "version": 12,
        "durable_version": 8,
        "steps": 1000,
        "loss": 2.5,
        "tokens_per_s": 800.0,
        "step_seconds": 1.25,
        "left_s": None,
        "microbatches": 16,
        "stages": [{"stage": number, "peers": peers} for number, peers in enumerate(stages)],
        "trainers": [{"id": "t", "name": "t", "leads": True, "address": ""}],
        "hops": [],
        "links": [],
        **values,
    }
