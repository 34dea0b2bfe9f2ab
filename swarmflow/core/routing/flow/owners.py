"""The owners of paths: a path is given to another data node where its two end links cost that one less.

Inside the pipeline only the data node of each unit changes. Exchanges between relays cannot do this: a flow has to
return to its own data node, so that both ends have to change at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from swarmflow.core.protocol.messages.negotiation import Locked, OwnFlows
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import INFINITE
from swarmflow.core.routing.flow.window import LinkChange

Path = tuple[ProcessId, ...]
NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True)
class Handover:
    """A change of a path's owner."""

    path: Path
    giver: ProcessId  # its data node now
    taker: ProcessId  # its data node afterwards


def cheapest_owners(owned: Mapping[ProcessId, OwnFlows], least: float = 0.0) -> list[Handover]:
    """Return the handovers that make the end links cost least in total. No data node gets more flows than it wants.

    Cycle cancelling on a graph of the data nodes and one node more, which stands for flows that are still wanted. The
    result is exact, since this is a transportation problem. A handover has to save more than `least`.
    """
    costs = {source: dict(mine.costs) for source, mine in owned.items()}
    paths = [(path, source) for source, mine in owned.items() for path in mine.paths]
    owner = [source for _, source in paths]
    ends = [{s: costs[s].get(p[0], INFINITE) + costs[s].get(p[-1], INFINITE) for s in owned} for p, _ in paths]
    while (cycle := _cycle(owned, owner, ends, least)) is not None:
        for path, taker in cycle:
            owner[path] = taker
    return [
        Handover(path, before, after) for (path, before), after in zip(paths, owner, strict=True) if before != after
    ]


def _cycle(
    owned: Mapping[ProcessId, OwnFlows],
    owner: Sequence[ProcessId],
    ends: Sequence[Mapping[ProcessId, float]],
    least: float,
) -> list[tuple[int, ProcessId]] | None:
    """Return a cycle of handovers, (path, taker), that reduces the cost, found by Bellman-Ford; None: there is none.

    The node None stands for flows that are still wanted.
    """
    nodes: list[ProcessId | None] = [*owned, None]
    arcs: dict[tuple[ProcessId | None, ProcessId | None], tuple[float, int]] = {}
    for path, giver in enumerate(owner):
        for taker in owned:
            saved = ends[path][taker] - ends[path][giver] + least
            if taker != giver and saved < arcs.get((giver, taker), (INFINITE, -1))[0]:
                arcs[giver, taker] = saved, path
    for source, mine in owned.items():
        arcs[None, source] = 0.0, -1
        if sum(name == source for name in owner) < mine.wanted:
            arcs[source, None] = 0.0, -1
    distance = dict.fromkeys(nodes, 0.0)
    predecessors: dict[ProcessId | None, ProcessId | None] = {}
    last: list[ProcessId | None] = []
    for _ in nodes:
        last = []
        for (tail, head), (cost, _) in arcs.items():
            if distance[tail] + cost < distance[head] - NEGLIGIBLE:
                distance[head] = distance[tail] + cost
                predecessors[head] = tail
                last = [head]
        if not last:
            return None
    at = last[0]
    for _ in nodes:
        at = predecessors[at]
    cycle, stop = [], at
    while True:
        before = predecessors[at]
        path = arcs[before, at][1]
        if path >= 0 and at is not None:
            cycle.append((path, at))
        at = before
        if at == stop:
            return cycle


def changes(handovers: Sequence[Handover], offers: Mapping[ProcessId, Locked]) -> dict[ProcessId, LinkChange]:
    """Return the changes of each participant. A path is left out where one of its links is not in both ends' offers."""
    left = {
        (name, outward): {(node, source): count for node, source, count in table}
        for name, offer in offers.items()
        for outward, table in ((False, offer.inflow), (True, offer.outflow))
    }
    valid = []
    for handover in handovers:
        old = (handover.giver, *handover.path, handover.giver)
        if handover.taker in offers and all(_there(left, a, b, handover.giver) for a, b in pairwise(old)):
            for a, b in pairwise(old):
                left[a, True][b, handover.giver] -= 1
                left[b, False][a, handover.giver] -= 1
            valid.append(handover)
    found: dict[ProcessId, LinkChange] = {}
    for handover in _wanted(valid, offers):
        for owner, units in ((handover.giver, -1), (handover.taker, 1)):
            for a, b in pairwise((owner, *handover.path, owner)):
                _add(found, a, b, owner, units)
    return found


def _there(
    left: Mapping[tuple[ProcessId, bool], Mapping[tuple[ProcessId, ProcessId], int]],
    sender: ProcessId,
    receiver: ProcessId,
    source: ProcessId,
) -> bool:
    """Return whether both ends still have a unit on this link."""
    out, into = left.get((sender, True), {}), left.get((receiver, False), {})
    return out.get((receiver, source), 0) > 0 and into.get((sender, source), 0) > 0


def _wanted(handovers: list[Handover], offers: Mapping[ProcessId, Locked]) -> list[Handover]:
    """Return the handovers without those that give a data node more flows than it wants by now."""
    kept = list(handovers)
    held = {name: sum(n for _, source, n in offer.outflow if source == name) for name, offer in offers.items()}
    for handover in kept:
        held[handover.giver] -= 1
        held[handover.taker] += 1
    while surplus := [h for h in kept if held[h.taker] > offers[h.taker].capacity]:
        held[surplus[0].giver] += 1
        held[surplus[0].taker] -= 1
        kept.remove(surplus[0])
    return kept


def _add(
    found: dict[ProcessId, LinkChange], sender: ProcessId, receiver: ProcessId, source: ProcessId, units: int
) -> None:
    for name, outward, key in ((sender, True, (receiver, source)), (receiver, False, (sender, source))):
        change = found.setdefault(name, LinkChange())
        table = change.outflow if outward else change.inflow
        table[key] = table.get(key, 0) + units
