"""Chooses the owner of each path: the data node for which the path's two end links cost least.

Inside the pipeline only the data node of each unit changes. Exchanges between relays cannot do this: a flow has to
return to its own data node, so both end links have to change at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from swarmflow.core.protocol.messages.negotiation import Locked, OwnFlows
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import INFINITE
from swarmflow.core.routing.flow.window import LinkChange

RelayPath = tuple[ProcessId, ...]  # a relay of each stage
NEGLIGIBLE = 1e-9  # a smaller reduction of a cost is a rounding error


@dataclass(frozen=True, slots=True)
class Handover:
    """A change of a path's owner."""

    path: RelayPath
    giver: ProcessId  # its data node now
    taker: ProcessId  # its data node afterwards


def cheapest_owners(owned: Mapping[ProcessId, OwnFlows], least: float = 0.0) -> list[Handover]:
    """Return the handovers that minimise the total cost of the end links. No data node gets more flows than it wants.

    The method is cycle cancelling on a graph of the data nodes and a dummy node, which has the flows that are still
    wanted. The result is exact, since this is a transportation problem. A handover has to save more than `least`.
    """
    costs = {source: dict(own.costs) for source, own in owned.items()}
    paths = [(path, source) for source, own in owned.items() for path in own.paths]
    owner = [source for _, source in paths]
    end_costs = [{s: costs[s].get(p[0], INFINITE) + costs[s].get(p[-1], INFINITE) for s in owned} for p, _ in paths]
    while (cycle := _cycle(owned, owner, end_costs, least)) is not None:
        for path, taker in cycle:
            owner[path] = taker
    return [
        Handover(path, before, after) for (path, before), after in zip(paths, owner, strict=True) if before != after
    ]


def _cycle(
    owned: Mapping[ProcessId, OwnFlows],
    owner: Sequence[ProcessId],
    end_costs: Sequence[Mapping[ProcessId, float]],
    least: float,
) -> list[tuple[int, ProcessId]] | None:
    """Return a cycle of handovers, (path, taker), that reduces the cost, found by Bellman-Ford; None: there is none.

    owner: the data node of each path. end_costs: of each path, the cost of its end links by data node. The node None
    is the dummy node.
    """
    nodes: list[ProcessId | None] = [*owned, None]
    # (giver, taker) -> (cost, path): the path whose handover costs least; -1: no path
    arcs: dict[tuple[ProcessId | None, ProcessId | None], tuple[float, int]] = {}
    for path, giver in enumerate(owner):
        for taker in owned:
            cost = end_costs[path][taker] - end_costs[path][giver] + least
            if taker != giver and cost < arcs.get((giver, taker), (INFINITE, -1))[0]:
                arcs[giver, taker] = cost, path
    for source, own in owned.items():
        arcs[None, source] = 0.0, -1
        if sum(name == source for name in owner) < own.wanted:
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
    node = last[0]
    for _ in nodes:  # so many steps back lead onto the cycle
        node = predecessors[node]
    cycle, start = [], node
    while True:
        before = predecessors[node]
        path = arcs[before, node][1]
        if path >= 0 and node is not None:
            cycle.append((path, node))
        node = before
        if node == start:
            return cycle


def changes(handovers: Sequence[Handover], offers: Mapping[ProcessId, Locked]) -> dict[ProcessId, LinkChange]:
    """Return the link changes of each participant. A path stays unless both ends of each of its links report it."""
    remaining = {
        (name, outward): {(node, source): count for node, source, count in table}
        for name, offer in offers.items()
        for outward, table in ((False, offer.inflow), (True, offer.outflow))
    }
    valid = []
    for handover in handovers:
        ring = (handover.giver, *handover.path, handover.giver)
        if handover.taker in offers and all(_both_have(remaining, a, b, handover.giver) for a, b in pairwise(ring)):
            for a, b in pairwise(ring):
                remaining[a, True][b, handover.giver] -= 1
                remaining[b, False][a, handover.giver] -= 1
            valid.append(handover)
    found: dict[ProcessId, LinkChange] = {}
    for handover in _without_surplus(valid, offers):
        for owner, units in ((handover.giver, -1), (handover.taker, 1)):
            for a, b in pairwise((owner, *handover.path, owner)):
                _add_change(found, a, b, owner, units)
    return found


def _both_have(
    remaining: Mapping[tuple[ProcessId, bool], Mapping[tuple[ProcessId, ProcessId], int]],
    sender: ProcessId,
    receiver: ProcessId,
    source: ProcessId,
) -> bool:
    """Return whether both ends have a unit left on this link. remaining: units by (node, outward), then by link."""
    out, into = remaining.get((sender, True), {}), remaining.get((receiver, False), {})
    return out.get((receiver, source), 0) > 0 and into.get((sender, source), 0) > 0


def _without_surplus(handovers: list[Handover], offers: Mapping[ProcessId, Locked]) -> list[Handover]:
    """Return the handovers without those that would give a data node more flows than it wants now."""
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


def _add_change(
    found: dict[ProcessId, LinkChange], sender: ProcessId, receiver: ProcessId, source: ProcessId, units: int
) -> None:
    """Add units of one link to the changes of both of its ends."""
    for name, outward, key in ((sender, True, (receiver, source)), (receiver, False, (sender, source))):
        change = found.setdefault(name, LinkChange())
        table = change.outflow if outward else change.inflow
        table[key] = table.get(key, 0) + units
