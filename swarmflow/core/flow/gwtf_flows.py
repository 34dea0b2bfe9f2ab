"""The outflows of one node in GWTF's negotiation: which are unpaired, what they cost, who asks for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from swarmflow.core.flow.gwtf_messages import (
    CostIs,
    Deny,
    Dropped,
    FlowApproved,
    FlowId,
    FlowRejected,
    NewAfter,
    NewBefore,
    RequestFlow,
)
from swarmflow.core.flow.node_types import INFINITE, FlowSend, Link, View
from swarmflow.core.types import ProcessId


@dataclass(slots=True)
class Outflow:
    """One unit of flow at one node.

    before, above: who sends it here, and its name there; None while nobody has claimed it. after, below: who takes it,
    and its name there; None where the node is the sink itself, and where a relay's inflow is unpaired. cost: to the
    sink. own_turn, own_moves: how often who sends it here and who has it has changed; turn, moves: the same of `below`.
    """

    flow: FlowId
    source: ProcessId
    cost: float
    after: ProcessId | None = None
    below: FlowId | None = None
    before: ProcessId | None = None
    above: FlowId | None = None
    own_turn: int = 0
    own_moves: int = 0
    turn: int = 0
    moves: int = 0


@dataclass(frozen=True, slots=True)
class Given:
    """What this node has given to another one: the whole outflow `own` (redirected), or what it sent to (swapped).

    flow: who has it now. after, below, before, above: to whom it went and from whom it came; None: that stays the same.
    """

    to: ProcessId
    flow: FlowId
    own: FlowId
    after: ProcessId
    below: FlowId
    before: ProcessId | None = None
    above: FlowId | None = None


@dataclass(slots=True)
class Outflows:
    """The outflows of a node, and what those of the stage before know of the unpaired ones.

    moved: by flow, what was redirected; swapped: by flow of the next stage, who sends to it now.
    """

    view: View
    table: dict[FlowId, Outflow] = field(default_factory=dict)
    moved: dict[FlowId, Given] = field(default_factory=dict)
    swapped: dict[FlowId, Given] = field(default_factory=dict)
    announced: dict[ProcessId, float] = field(default_factory=dict)
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

    def broadcast(self) -> list[FlowSend]:
        """Tell the stage before what has changed of the costs of unpaired outflows."""
        sources = dict.fromkeys([*self.announced, *(unit.source for unit in self.table.values())])
        sends: list[FlowSend] = []
        for source in sources:
            unit = self.cheapest(source)
            cost = INFINITE if unit is None else unit.cost
            if self.announced.get(source, INFINITE) != cost:
                self.announced[source] = cost
                sends += [
                    FlowSend(to, CostIs(source, cost), "the cheapest unpaired changed") for to in self.view.before
                ]
        return sends

    def greet(self, view: View) -> list[FlowSend]:
        """Others are there now: those of the stage before are told the costs that the rest of it knows."""
        fresh = [node for node in view.before if node not in self.view.before]
        self.view = view
        costs = [CostIs(source, cost) for source, cost in self.announced.items() if cost < INFINITE]
        return [FlowSend(node, message, "it is new") for node in fresh for message in costs]

    def lose(self, process: ProcessId) -> list[FlowSend]:
        """It is dead: what came from it is unpaired again, and so is what went to it.

        What was given to it is, too, as far as it has not told those beside it before it died.
        """
        sends: list[FlowSend] = []
        for given in (*self.moved.values(), *self.swapped.values()):
            if given.to == process:
                sends.append(
                    FlowSend(given.after, Dropped(given.below, self.view.me, given.own), "given to a dead one")
                )
                if given.before is not None and given.above is not None:
                    sends.append(
                        FlowSend(given.before, Deny(given.above, given.flow, self.view.me), "given to a dead one")
                    )
        self.moved = {flow: given for flow, given in self.moved.items() if given.to != process}
        self.swapped = {below: given for below, given in self.swapped.items() if given.to != process}
        for unit in list(self.table.values()):
            if unit.before == process:
                unit.before = unit.above = None
            if unit.after == process:
                self._loosen(unit)
            elif unit.before is None and unit.after is None:
                del self.table[unit.flow]
        return sends

    def denied(self, message: Deny) -> list[FlowSend]:
        """The next stage has nowhere to send it (any more)."""
        unit = self.table.get(message.flow)
        if unit is not None and unit.below == message.below:
            if unit.after == message.after:
                self._loosen(unit)
            return []
        given = self._whose(message.flow, message.below)
        return [] if given is None else self._send_on(given.to, replace(message, flow=given.flow))

    def dropped(self, message: Dropped) -> list[FlowSend]:
        """Nobody sends it any more."""
        unit = self.table.get(message.flow)
        if unit is not None:
            if (unit.before, unit.above) == (message.before, message.above):
                unit.before = unit.above = None
            return []
        given = self.moved.get(message.flow)
        return [] if given is None else self._send_on(given.to, message)

    def requested(self, sender: ProcessId, message: RequestFlow) -> list[FlowSend]:
        """Approve if there is an unpaired outflow at that cost, else say what there is."""
        unit = self.cheapest(message.source)
        if unit is None or unit.cost != message.cost:
            cost = INFINITE if unit is None else unit.cost
            return [FlowSend(sender, FlowRejected(message.source, cost, message.flow), "no such outflow")]
        unit.before, unit.above, unit.own_turn = sender, message.flow, unit.own_turn + 1
        approval = FlowApproved(message.source, unit.cost, message.flow, unit.flow, unit.own_turn, unit.own_moves)
        return [FlowSend(sender, approval, "unpaired at that cost"), *self.broadcast()]

    def new_before(self, message: NewBefore) -> list[FlowSend]:
        """Somebody else of the stage before sends it now; what has moved away is told to who has it."""
        unit = self.table.get(message.flow)
        if unit is not None:
            if message.turn > unit.own_turn:
                unit.before, unit.above, unit.own_turn = message.before, message.above, message.turn
            return []
        given = self.moved.get(message.flow)
        return [] if given is None else self._send_on(given.to, message)

    def new_after(self, message: NewAfter) -> list[FlowSend]:
        """Somebody else of the next stage takes it now; if it is another's by now, that one is told."""
        unit = self.table.get(message.flow)
        if unit is not None and unit.below == message.below:
            if message.moves > unit.moves:
                unit.after, unit.moves = message.after, message.moves
            return []
        given = self._whose(message.flow, message.below)
        return [] if given is None else self._send_on(given.to, replace(message, flow=given.flow))

    def inflow(self) -> dict[Link, int]:
        """By (node before, data node)."""
        return Counter((unit.before, unit.source) for unit in self.table.values() if unit.before is not None)

    def outflow(self) -> dict[Link, int]:
        """By (node after, data node)."""
        return Counter((unit.after, unit.source) for unit in self.table.values() if unit.after is not None)

    def _send_on(self, to: ProcessId, message: NewBefore | NewAfter | Deny | Dropped) -> list[FlowSend]:
        """The flow is another's by now. Where two have given it to each other, word of it would go round for ever."""
        if message.passed > len(self.view.beside):
            return []
        return [FlowSend(to, replace(message, passed=message.passed + 1), "it is another's")]

    def _whose(self, flow: FlowId, below: FlowId) -> Given | None:
        """Who sends to `below` since it was swapped or redirected away from here."""
        return self.swapped.get(below) or self.moved.get(flow)

    def _loosen(self, unit: Outflow) -> None:
        unit.after, unit.below, unit.cost = None, None, INFINITE
        if unit.before is None:
            del self.table[unit.flow]
