"""What the next stage has room for, and what the rest of the way costs: distance labels, from the sinks backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmflow.core.flow.messages import Label
from swarmflow.core.flow.node_types import INFINITE
from swarmflow.core.types import ProcessId

WIDE = 10**9  # capacity of the data nodes as the end of all ways
WORTH_TELLING = 0.02  # a cost that changed by less is not told


@dataclass(frozen=True, slots=True)
class LabelledNode:
    """A node of the next stage that takes up to `units`, at a cost to the data node in all."""

    node: ProcessId
    units: int
    cost: float


@dataclass(slots=True)
class Labels:
    """The latest label of each node of the next stage, less what has been reserved since."""

    cost: Mapping[ProcessId, float]
    known: dict[ProcessId, Label] = field(default_factory=dict)
    taken: dict[ProcessId, int] = field(default_factory=dict)
    fresh: bool = False  # something changed since `costs` was asked

    def received(self, node: ProcessId, label: Label) -> None:
        """A new label."""
        self.known[node] = label
        self.taken.pop(node, None)
        self.fresh = True

    def take(self, node: ProcessId, count: int) -> None:
        """So many units were asked of it."""
        self.taken[node] = self.taken.get(node, 0) + count

    def forget(self, node: ProcessId) -> None:
        """It is dead."""
        self.known.pop(node, None)
        self.fresh = True

    @property
    def width(self) -> int:
        """What the narrowest stage from the next one on can hold, as far as its nodes are known."""
        ahead = max((label.width for label in self.known.values()), default=0)
        return min(sum(label.capacity for label in self.known.values()), ahead)

    def paths(self, source: ProcessId) -> list[LabelledNode]:
        """Those that can take units of a data node: orphans first, since that mends a torn flow, then by cost."""
        mending, others = [], []
        for node, label in self.known.items():
            taken = self.taken.get(node, 0)
            for name, cost, orphans in label.costs:
                if name != source:
                    continue
                if orphans > taken:
                    mending.append(LabelledNode(node, orphans - taken, self.cost[node] + cost))
                elif label.room + orphans > taken and cost < INFINITE:
                    others.append(LabelledNode(node, label.room + orphans - taken, self.cost[node] + cost))
        mending.sort(key=lambda path: (path.cost, path.node))
        others.sort(key=lambda path: (path.cost, path.node))
        return mending + others

    def costs(self) -> dict[ProcessId, float]:
        """The least cost from here to each data node; those that cannot be reached are left out."""
        self.fresh = False
        best: dict[ProcessId, float] = {}
        for node, label in self.known.items():
            link = self.cost[node]
            for source, cost, orphans in label.costs:
                if (label.room > 0 or orphans > 0) and link + cost < best.get(source, INFINITE):
                    best[source] = link + cost
        return best


def worth_telling(announced: Label | None, label: Label) -> bool:
    """Whether those before need to know: what can be reached, or what it costs, is not what they were told."""
    if announced is None:
        return bool(label.costs) or label.room == 0  # who was filled by an exchange counts for the width as well
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
        abs(cost - old[source][0]) > WORTH_TELLING * abs(old[source][0]) or (orphans > 0) != (old[source][1] > 0)
        for source, (cost, orphans) in new.items()
    )
