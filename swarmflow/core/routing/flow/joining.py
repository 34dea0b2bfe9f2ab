"""The stage in which a new peer helps most (GWTF, V-B): by utilisation, as in GWTF, or by the cost that it saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from swarmflow.core.protocol.messages.negotiation import Locked
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import Link
from swarmflow.core.routing.flow.window import Window


@dataclass(frozen=True, slots=True)
class Placement:
    """The stage that a candidate joins, and why."""

    stage: int
    reason: str


def most_utilised(flows: Sequence[int], capacity: Sequence[int]) -> Placement:
    """Return the stage with the highest ratio of flows to capacity (GWTF's rule); the first one of equal stages.

    Of several candidates, GWTF places the one with the highest capacity first.
    """
    utilisation = [f / c if c else float("inf") for f, c in zip(flows, capacity, strict=True)]
    stage = utilisation.index(max(utilisation))
    return Placement(stage, f"{flows[stage]} flows of {capacity[stage]}")


def gain(offers: Mapping[ProcessId, Locked], candidate: Locked, name: ProcessId, random: Random) -> float:
    """Return the cost that a stage saves if its flows are optimised with the candidate, the other stages fixed.

    offers: the links of the stage's members. candidate: the new peer's capacity and costs, without links. name: its id.
    """
    before: dict[ProcessId, dict[Link, int]] = {}
    after: dict[ProcessId, dict[Link, int]] = {}
    for member, offer in offers.items():
        for sides, links in ((before, offer.inflow), (after, offer.outflow)):
            for node, source, count in links:
                sides.setdefault(node, {})[member, source] = count
    window = Window([{**offers, name: candidate}], before, after)
    for _ in window.solve(random):
        pass
    return window.saved


def best_stage(gains: Sequence[float], flows: Sequence[int], capacity: Sequence[int], wanted: int) -> Placement:
    """Return the stage that saves most (swarmflow's rule), or the narrowest one while it holds too few flows.

    gains: of each stage, from `gain`. wanted: flows that the data nodes want.
    """
    narrowest = min(range(len(capacity)), key=lambda stage: capacity[stage])
    if capacity[narrowest] < wanted:
        return Placement(narrowest, f"holds {capacity[narrowest]} of {wanted} flows")
    if max(gains) <= 0:
        return most_utilised(flows, capacity)
    stage = gains.index(max(gains))
    return Placement(stage, f"saves {gains[stage]:g}")
