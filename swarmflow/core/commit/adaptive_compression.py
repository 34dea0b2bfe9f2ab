"""Adaptive compression: how many numbers of a boundary tensor cross each boundary in a step (`codec = "adatopk"`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from swarmflow.core.protocol.types import RUN_ELEMENTS, ProcessId, Roster
from swarmflow.core.routing.link_rates import LinkTable

NUMBER_BYTES: Final = 2.016  # of one that is kept, with its place (compute/topk.py)
ALL_BYTES: Final = 1.016  # of each, where all are kept: they need no place


def kept_numbers(rates: Sequence[float], ratio: float) -> tuple[int, ...]:
    """Return how many of 256 numbers cross each boundary: FusionLLM, section 5.2, equation 7.

    rates: of the boundaries' links, in bytes/s; 0: not known, which counts as the slowest. ratio: by how much the
    tensors of the slowest boundary are compressed, against fp32. Those of another one are by so much less as it is
    faster: r_i = max(1, ratio * R_i / max R), for the time R_i that the tensors take uncompressed.
    """
    slowest = min((rate for rate in rates if rate > 0), default=0.0)
    return tuple(_kept(max(1.0, ratio * slowest / rate if rate > 0 else ratio)) for rate in rates)


def byte_share(kept: int) -> float:
    """Return the bytes of a boundary tensor of which so many of 256 numbers are sent, by those that it has in fp32."""
    each_bytes = NUMBER_BYTES if kept < RUN_ELEMENTS else ALL_BYTES
    return kept * each_bytes / (4 * RUN_ELEMENTS)


def boundary_rates(roster: Roster, links: LinkTable) -> tuple[float, ...]:
    """Return the rate of each boundary's links, in bytes/s; 0: none is known.

    It is that of the peer that is connected worst: of its fastest link across the boundary, since microbatches take
    that one where they can.
    """
    return tuple(
        _worst(roster.ids_by_stage[stage], roster.ids_by_stage[stage + 1], links)
        for stage in range(len(roster.stages) - 1)
    )


def _worst(before: Sequence[ProcessId], after: Sequence[ProcessId], links: LinkTable) -> float:
    best: dict[ProcessId, float] = {}
    for one in before:
        for other in after:
            if links.is_measured(one, other):
                rate = links.rate(one, other)
                best[one], best[other] = max(best.get(one, 0.0), rate), max(best.get(other, 0.0), rate)
    return min(best.values(), default=0.0)


def _kept(ratio: float) -> int:
    """Return how many of 256 numbers fit into 1/ratio of their bytes in fp32; all, where they do without places."""
    allowed_bytes = 4 * RUN_ELEMENTS / ratio
    kept = max(1, int(allowed_bytes / NUMBER_BYTES))
    return RUN_ELEMENTS if kept * NUMBER_BYTES >= ALL_BYTES * RUN_ELEMENTS else kept
