"""How many units of flow a peer offers: its part of what its stage has to carry at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping

from swarmflow.core.types import ProcessId

SLACK = 1.5  # times what the stage has to carry: flows are to have a choice


def units(
    me: ProcessId, capacity: Mapping[ProcessId, int], rate: Mapping[ProcessId, float], microbatches: int, most: int
) -> int:
    """Of one peer of a stage. capacity: graphs that fit into memory; rate: microbatches a second; both by peer.

    As many as memory holds would let the cheapest peers have all the work, where memory is large. So each gets its part
    by its speed, but not more than it can hold; where all memory together is too small, by its memory, and the surplus
    goes without graphs. most: times its capacity.
    """
    wanted = SLACK * microbatches
    total = sum(capacity.values())
    if total <= wanted:
        return max(1, min(math.ceil(wanted * capacity[me] / max(1, total)), most * capacity[me]))
    left, rates = wanted, sum(rate.values())
    for process in sorted(capacity, key=lambda p: (capacity[p] / rate[p], p)):
        if capacity[process] * rates > left * rate[process]:
            return max(1, min(capacity[me], math.ceil(left * rate[me] / rates)))
        if process == me:
            break
        left -= capacity[process]
        rates -= rate[process]
    return max(1, capacity[me])
