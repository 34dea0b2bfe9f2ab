"""Which microbatches of a step each trainer forms, as the data rule says."""

from __future__ import annotations

from swarmflow.core.protocol.types import ProcessId


def shares(trainers: tuple[ProcessId, ...], microbatches: int) -> dict[ProcessId, range]:
    """Return the indices of the microbatches that each trainer forms."""
    return {trainer: range(rank, microbatches, len(trainers)) for rank, trainer in enumerate(trainers)}
