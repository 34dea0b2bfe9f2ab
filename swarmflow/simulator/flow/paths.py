"""The result of a negotiation: the paths that microbatches would take, and nodes that hold more than they can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import FlowNode


@dataclass(frozen=True, slots=True)
class FlowPaths:
    """The paths of all flows."""

    paths: tuple[tuple[ProcessId, ...], ...]  # of each: data node, a relay of each stage, without the data node again
    torn: int  # units of flow that only one end of a link knows of, or that end before their data node


def over_capacity(nodes: Mapping[ProcessId, FlowNode]) -> list[str]:
    """Return a line for each node that holds more than it can."""
    return [
        f"{name}: holds {node.held}, can hold {node.view.capacity}"
        for name, node in nodes.items()
        if node.held > node.view.capacity
    ]


def find_paths(nodes: Mapping[ProcessId, FlowNode], stages: int) -> FlowPaths:
    """Follow what both ends of each link agree on, from every data node back to itself."""
    left: dict[tuple[ProcessId, ProcessId, ProcessId], int] = {}
    torn = 0
    for name, node in nodes.items():
        for (after, source), count in node.outflow.items():
            other = nodes.get(after)
            known = 0 if other is None else other.inflow.get((name, source), 0)
            left[name, after, source] = min(count, known)
            torn += max(0, count - known)
        for (before, source), count in node.inflow.items():
            other = nodes.get(before)
            torn += max(0, count - (0 if other is None else other.outflow.get((name, source), 0)))
    paths = []
    after_of: dict[tuple[ProcessId, ProcessId], list[ProcessId]] = {}
    for (name, after, source), count in sorted(left.items()):
        after_of.setdefault((name, source), []).extend([after] * count)
    for source in nodes:
        for _ in range(len(after_of.get((source, source), ()))):
            path = [source]
            while len(path) <= stages + 1 and after_of.get((path[-1], source)):
                path.append(after_of[path[-1], source].pop(0))
                if path[-1] == source:
                    break
            if len(path) == stages + 2 and path[-1] == source:
                paths.append(tuple(path[:-1]))
            else:
                torn += 1
    return FlowPaths(tuple(paths), torn)
