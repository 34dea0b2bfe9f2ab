"""Distance labels of the next stage: its free units and their cost to each data node, propagated from the sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmflow.core.protocol.messages.negotiation import Label
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import COST_MAX_S, INFINITE

WIDE = 10**9  # capacity that a data node announces as the end of all paths: no limit
WORTH_ANNOUNCING = 0.02  # a smaller relative change of a cost is not announced


@dataclass(frozen=True, slots=True)
class LabelledNode:
    """A node of the next stage that accepts up to `units`, at `cost` for the whole path to the data node."""

    node: ProcessId
    units: int
    cost: float


@dataclass(slots=True)
class Labels:
    """The latest label of each node of the next stage, less what has been reserved since."""

    cost: Mapping[ProcessId, float]  # of the link to each node of the next stage
    known: dict[ProcessId, Label] = field(init=False, default_factory=dict)  # the latest label of each node
    taken: dict[ProcessId, int] = field(init=False, default_factory=dict)  # units requested since that label

    def received(self, node: ProcessId, label: Label) -> None:
        """Store a new label of a node and reset the units requested since the former one."""
        self.known[node] = label
        self.taken.pop(node, None)

    def take(self, node: ProcessId, count: int) -> None:
        """Count units that were requested from a node since its last label."""
        self.taken[node] = self.taken.get(node, 0) + count

    def forget(self, node: ProcessId) -> None:
        """Remove a node that is dead."""
        self.known.pop(node, None)
        self.taken.pop(node, None)

    @property
    def width(self) -> int:
        """Return the capacity of the narrowest stage ahead, as far as its nodes are known."""
        ahead = max((label.width for label in self.known.values()), default=0)
        return min(sum(label.capacity for label in self.known.values()), ahead)

    def paths(self, source: ProcessId) -> list[LabelledNode]:
        """Return the nodes that accept units of a data node: orphans first, to mend torn flows, then by cost."""
        mending, others = [], []
        for node, label in self.known.items():
            taken = self.taken.get(node, 0)
            for name, cost, orphans in label.costs:
                if name != source:
                    continue
                if orphans > taken:
                    mending.append(LabelledNode(node, orphans - taken, self._path_cost(node, cost)))
                elif label.room + orphans > taken and cost < INFINITE:
                    others.append(LabelledNode(node, label.room + orphans - taken, self._path_cost(node, cost)))
        mending.sort(key=lambda path: (path.cost, path.node))
        others.sort(key=lambda path: (path.cost, path.node))
        return mending + others

    def costs(self) -> dict[ProcessId, float]:
        """Return the least cost from here to each data node that can be reached."""
        best: dict[ProcessId, float] = {}
        for node, label in self.known.items():
            for source, cost, orphans in label.costs:
                path = self._path_cost(node, cost)
                if (label.room > 0 or orphans > 0) and path < best.get(source, INFINITE):
                    best[source] = path
        return best

    def _path_cost(self, node: ProcessId, cost: float) -> float:
        """Return the cost of a path through a node: whatever that node claims, a number that others accept."""
        return min(COST_MAX_S, self.cost[node] + cost)


def worth_announcing(announced: Label | None, label: Label) -> bool:
    """Return whether the label differs from the announced one in what can be reached, or noticeably in its cost."""
    if announced is None:
        return bool(label.costs) or label.room == 0  # a node that an exchange has filled counts for the width too
    if announced.width != label.width:
        return True
    if (announced.room > 0) != (label.room > 0) or announced.room > 2 * label.room:
        return True
    old = {source: (cost, orphans) for source, cost, orphans in announced.costs}
    new = {source: (cost, orphans) for source, cost, orphans in label.costs}
    if label.room == 0:
        return {s for s, (_, n) in old.items() if n} != {s for s, (_, n) in new.items() if n}
    if old.keys() != new.keys():
        return True
    return any(
        abs(cost - old[source][0]) > WORTH_ANNOUNCING * abs(old[source][0]) or (orphans > 0) != (old[source][1] > 0)
        for source, (cost, orphans) in new.items()
    )
