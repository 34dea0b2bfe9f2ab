"""A committed step as one JSON object: the lines of docs/json-log.md, and the curves of those who watch."""

from __future__ import annotations

import math

from swarmflow.core.protocol.messages import StepResult


def step_line(result: StepResult, now_s: float) -> dict[str, object]:
    """Return the fields of a committed step. now_s: since 1970, or virtual."""
    fields: dict[str, object] = {
        "step": result.step,
        "loss": _finite(result.loss),
        "tokens": result.tokens,
        "seconds": round(result.seconds, 6),
        "grad_norm": _finite(result.grad_norm),
        "lr": result.learning_rate,
        "microbatches": result.microbatches,
        "peers": list(result.peers),
        "retries": result.retries,
        "version": result.step + 1,
        "time": round(now_s, 3),
    }
    if result.validation_loss is not None:
        fields["validation_loss"] = _finite(result.validation_loss)
    if result.kept:
        fields["kept"] = list(result.kept)
    return fields


def _finite(value: float) -> float | None:
    """Return a number for JSON, which has no not-a-number and no infinity."""
    return value if math.isfinite(value) else None
