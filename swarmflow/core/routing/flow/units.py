"""The units of flow that a peer offers: its share of the microbatches that its stage has to hold at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping

from swarmflow.core.protocol.types import ProcessId

SLACK = 1.5  # units that a stage offers, as a multiple of a step's microbatches, so that flows have a choice


def units(
    me: ProcessId, capacity: Mapping[ProcessId, int], rate: Mapping[ProcessId, float], microbatches: int, most: int
) -> int:
    """Return the units of flow that one peer of a stage offers.

    capacity: graphs that fit into memory; rate: microbatches/s; both by peer. microbatches: of a step. most: units that
    a peer may hold, as a multiple of its capacity, if it computes without graphs.

    If each peer offered what its memory holds, the cheapest peers would get all the work where memory is large.
    Therefore each peer offers a share in proportion to its speed, at most its capacity; if the total capacity is too
    small, at most what it may hold, of which it computes the surplus without graphs.
    """
    wanted = SLACK * microbatches
    limit = capacity
    if sum(capacity.values()) <= wanted:
        limit = {process: most * graphs for process, graphs in capacity.items()}
    # Peers that are too small for their share offer their limit; the others share what is left.
    left, rates = wanted, sum(rate.values())
    for process in sorted(limit, key=lambda p: (limit[p] / rate[p], p)):
        if limit[process] * rates > left * rate[process]:
            return max(1, min(limit[me], math.ceil(left * rate[me] / rates)))
        if process == me:
            break
        left -= limit[process]
        rates -= rate[process]
    return max(1, limit[me])
