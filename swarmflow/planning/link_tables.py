"""Tables of the links between all peers, of those that were measured: the others count as the median one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swarmflow.core.protocol.types import MeasuredLink
from swarmflow.planning.arrangement import Matrix


def link_tables(count: int, links: Sequence[MeasuredLink]) -> tuple[Matrix, Matrix]:
    """Return latencies in seconds and rates in bytes/s, float64 `[from][to]`, of so many peers.

    A link that only its other end has measured is as that says. At least one must be known.
    """
    ends = np.array([(link.sender, link.receiver) for link in links], dtype=np.int64)
    values = np.array([(link.latency_s, link.rate) for link in links])
    tables = []
    for usual, column in zip(np.median(values, axis=0), values.T, strict=True):
        table = np.full((count, count), usual)
        table[ends[:, 1], ends[:, 0]] = column
        table[ends[:, 0], ends[:, 1]] = column
        tables.append(table)
    return tables[0], tables[1]
