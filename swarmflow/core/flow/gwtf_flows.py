"""The outflows of one node in GWTF's negotiation: which are unpaired, what they cost, who asks for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from swarmflow.core.flow.gwtf_messages import (
    CostIs,
    Deny,
    FlowApproved,
    FlowId,
    FlowRejected,
    NewAfter,
    NewBefore,
    RequestFlow,
)  # fmt: skip
from swarmflow.core.flow.words import INFINITE, Link, Say, View
from swarmflow.core.types import ProcessId


@dataclass(slots=True)
class Outflow:
    """One unit of flow at one node.

    before, above: who sends it here, and its name there; None while nobody has claimed it. after, below: who takes it,
    and its name there; None where the node is the sink itself, and where a relay's inflow is unpaired. cost: to the
    sink.
    """

    flow: FlowId
    source: ProcessId
    cost: float
    after: ProcessId | None = None
    below: FlowId | None = None
    before: ProcessId | None = None
    above: FlowId | None = None


@dataclass(slots=True)
class Outflows:
    """The outflows of a node, and what those of the stage before know of the unpaired ones."""

    view: View
    table: dict[FlowId, Outflow] = field(default_factory=dict)
    moved: dict[FlowId, ProcessId] = field(default_factory=dict)  # redirected: who has it now
    swapped: dict[FlowId, tuple[ProcessId, FlowId]] = field(default_factory=dict)  # below -> who sends to it now
    told: dict[ProcessId, float] = field(default_factory=dict)
    made: int = 0

    def name(self) -> FlowId:
        """A new one."""
        self.made += 1
        return FlowId(self.view.me, self.made)

    @property
    def loose(self) -> list[Outflow]:
        """Of a relay: unpaired inflows."""
        return [unit for unit in self.table.values() if unit.after is None]

    def cheapest(self, source: ProcessId) -> Outflow | None:
        """The unpaired outflow to this data node that costs least."""
        free = [unit for unit in self.table.values() if unit.before is None and unit.source == source]
        return min(free, key=lambda unit: (unit.cost, unit.flow), default=None)

    def broadcast(self) -> list[Say]:
        """Tell the stage before what has changed of the costs of unpaired outflows."""
        sources = dict.fromkeys([*self.told, *(unit.source for unit in self.table.values())])
        said: list[Say] = []
        for source in sources:
            unit = self.cheapest(source)
            cost = INFINITE if unit is None else unit.cost
            if self.told.get(source, INFINITE) != cost:
                self.told[source] = cost
                said += [Say(to, CostIs(source, cost), "the cheapest unpaired changed") for to in self.view.before]
        return said

    def greet(self, view: View) -> list[Say]:
        """Others are there now: those of the stage before are told the costs that the rest of it knows."""
        fresh = [node for node in view.before if node not in self.view.before]
        self.view = view
        costs = [CostIs(source, cost) for source, cost in self.told.items() if cost < INFINITE]
        return [Say(node, message, "it is new") for node in fresh for message in costs]

    def lose(self, process: ProcessId) -> None:
        """It is dead: what came from it is unpaired again, and so is what went to it."""
        for unit in list(self.table.values()):
            if unit.before == process:
                unit.before = unit.above = None
            if unit.after == process:
                self._loosen(unit)
            elif unit.before is None and unit.after is None:
                del self.table[unit.flow]

    def denied(self, message: Deny) -> list[Say]:
        """The next stage has nowhere to send it (any more)."""
        unit = self.table.get(message.flow)
        if unit is not None and unit.below == message.below:
            self._loosen(unit)
            return []
        whose = self._whose(message.flow, message.below)
        return [] if whose is None else [Say(whose[0], Deny(whose[1], message.below), "it is another's")]

    def requested(self, sender: ProcessId, message: RequestFlow) -> list[Say]:
        """Approve if there is an unpaired outflow at that cost, else say what there is."""
        unit = self.cheapest(message.source)
        if unit is None or unit.cost != message.cost:
            cost = INFINITE if unit is None else unit.cost
            return [Say(sender, FlowRejected(message.source, cost, message.flow), "no such outflow")]
        unit.before, unit.above = sender, message.flow
        approval = FlowApproved(message.source, unit.cost, message.flow, unit.flow)
        return [Say(sender, approval, "unpaired at that cost"), *self.broadcast()]

    def new_before(self, message: NewBefore) -> list[Say]:
        """Somebody else of the stage before sends it now; what has moved away is told to who has it."""
        unit = self.table.get(message.flow)
        if unit is not None:
            unit.before, unit.above = message.before, message.above
            return []
        to = self.moved.get(message.flow)
        return [] if to is None else [Say(to, message, "it was redirected")]

    def new_after(self, message: NewAfter) -> list[Say]:
        """Somebody else of the next stage takes it now; if it is another's by now, that one is told."""
        unit = self.table.get(message.flow)
        if unit is not None and unit.below == message.below:
            unit.after = message.after
            return []
        whose = self._whose(message.flow, message.below)
        if whose is None:
            return []
        return [Say(whose[0], NewAfter(whose[1], message.after, message.below), "it is another's")]

    def inflow(self) -> dict[Link, int]:
        """By (node before, data node)."""
        return Counter((unit.before, unit.source) for unit in self.table.values() if unit.before is not None)

    def outflow(self) -> dict[Link, int]:
        """By (node after, data node)."""
        return Counter((unit.after, unit.source) for unit in self.table.values() if unit.after is not None)

    def _whose(self, flow: FlowId, below: FlowId) -> tuple[ProcessId, FlowId] | None:
        """Who sends to `below` since it was swapped or redirected away from here, and under which name."""
        if below in self.swapped:
            return self.swapped[below]
        return (self.moved[flow], flow) if flow in self.moved else None

    def _loosen(self, unit: Outflow) -> None:
        unit.after, unit.below, unit.cost = None, None, INFINITE
        if unit.before is None:
            del self.table[unit.flow]
