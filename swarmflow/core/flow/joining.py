"""Where a candidate helps most (GWTF, V-B): by utilisation as GWTF has it, or by what a stage would save with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from swarmflow.core.flow.messages import Locked
from swarmflow.core.flow.node_types import Link
from swarmflow.core.flow.window import Window
from swarmflow.core.types import ProcessId


@dataclass(frozen=True, slots=True)
class Placement:
    """The stage that a candidate is to join, and why."""

    stage: int
    reason: str


def most_utilised(flows: Sequence[int], capacity: Sequence[int]) -> Placement:
    """GWTF's rule: the stage with the highest ratio of flows to capacity; ties go to the first one.

    Its leader gives it the candidate with the highest capacity first.
    """
    used = [f / c if c else float("inf") for f, c in zip(flows, capacity, strict=True)]
    stage = used.index(max(used))
    return Placement(stage, f"{flows[stage]} flows of {capacity[stage]}")


def gain(offers: Mapping[ProcessId, Locked], candidate: Locked, name: ProcessId, random: Random) -> float:
    """What one stage saves if its flows are assigned anew with the candidate, those before and after held fixed.

    offers: what the members of the stage showed; candidate: its capacity and costs, without links.
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
    """Ours: where most is saved; but the narrowest stage first while it keeps flows from being established.

    wanted: flows that the data nodes ask for.
    """
    narrowest = min(range(len(capacity)), key=lambda stage: capacity[stage])
    if capacity[narrowest] < wanted:
        return Placement(narrowest, f"holds {capacity[narrowest]} of {wanted} flows")
    if max(gains) <= 0:
        return most_utilised(flows, capacity)
    stage = gains.index(max(gains))
    return Placement(stage, f"saves {gains[stage]:g}")
