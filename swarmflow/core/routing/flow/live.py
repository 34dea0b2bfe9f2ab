"""The flow negotiation of one process, which runs beside its training and continues from one step to the next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from zlib import crc32

from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Negotiate
from swarmflow.core.protocol.messages.negotiation import (
    ApplyExchange,
    ExchangeTurn,
    ExchangeTurnTaken,
    Inquire,
    LockDenied,
    Locked,
    SideLocked,
    SideLockRequest,
    Times,
)
from swarmflow.core.protocol.shares import shares
from swarmflow.core.protocol.types import Member, ProcessId, Roster
from swarmflow.core.routing.compute_timer import ComputeTimer
from swarmflow.core.routing.flow.costs import FlowCosts, changed
from swarmflow.core.routing.flow.node_types import FlowSend, View
from swarmflow.core.routing.flow.plausibility import is_plausible
from swarmflow.core.routing.flow.relay import FlowRelay
from swarmflow.core.routing.flow.router import NO_FLOWS, FlowRouter
from swarmflow.core.routing.flow.source import FlowSource
from swarmflow.core.routing.flow.units import units

TRAINER = -1
ROUND_S = 0.25  # one round: the assumed time of a message between neighbours
COSTS_EVERY_S = 2.0  # between two updates of the costs, until they are calm
CALM_S = 60.0  # after the last change of membership; from then on the costs are calm
COSTS_CALM_EVERY_S = 20.0  # between two updates of calm costs
WORTH = 0.005  # the share of a window's cost that an exchange has to save to count as a gain
LINKS = 48  # approximate links of a process to a neighbouring stage, where both stages are larger
EARLY_MAX = 64  # kept messages of processes that are not in the roster yet
VIA_MAX = 512  # known processes two stages away
# Messages that may be forwarded to a process two stages away.
DISTANT = (SideLockRequest, SideLocked, LockDenied, Inquire, ApplyExchange, ExchangeTurn, ExchangeTurnTaken)


@dataclass(slots=True)
class FlowNegotiation:
    """Connects a flow machine with its process: it sends and checks messages, and updates views and costs.

    A process knows its neighbours only. A message for a process two stages away is forwarded by the neighbour that has
    named that process.
    """

    me: ProcessId
    stage: int  # TRAINER: a trainer
    stages: int
    microbatches: int  # of a step
    router: FlowRouter  # follows the negotiated flows
    random: Random  # of this process alone
    timer: ComputeTimer  # of the passes here; a trainer computes none
    most: int = 1  # microbatches that this process takes at a time, as a multiple of its capacity
    node: FlowRelay | FlowSource | None = field(init=False, default=None)  # None: this process takes no part
    costs: FlowCosts = field(init=False)
    _places: dict[ProcessId, int] = field(init=False, default_factory=dict)  # stage of each process known here
    _capacity: dict[ProcessId, int] = field(init=False, default_factory=dict)  # of the processes of the own stage
    _sources: dict[ProcessId, None] = field(init=False, default_factory=dict)  # trainers, former ones included
    _via: dict[ProcessId, ProcessId] = field(init=False, default_factory=dict)  # process two stages away -> neighbour
    _early: list[tuple[ProcessId, Negotiate]] = field(init=False, default_factory=list)  # from unknown senders
    _next_s: float = field(init=False, default=0.0)  # when the machine is ticked
    _costs_s: float = field(init=False, default=0.0)  # when the costs are updated
    _calm_s: float = field(init=False, default=0.0)  # when the costs become calm

    def __post_init__(self) -> None:
        self.costs = FlowCosts(lambda: self.timer.compute_s, self.router.links.link_s)

    def open(self, roster: Roster, now: float) -> list[Action]:
        """Take the roster of a new epoch: remove processes that have left, and add newcomers."""
        ring = (roster.trainers, *roster.stages)
        self._capacity = {member.process: member.capacity for member in ring[self.stage + 1]}
        if self.me not in self._capacity:
            self.stop()
            return []
        places = {member.process: stage - 1 for stage in self._known_stages(ring) for member in ring[stage]}
        actions: list[Action] = []
        for process in [process for process, stage in self._places.items() if places.get(process) != stage]:
            actions += self.gone(process, now)
        former, self._places = self._places, places
        self._sources |= dict.fromkeys(member.process for member in roster.trainers)
        view = self._view(ring)
        has_new = any(process not in former for process in (*view.before, *view.beside, *view.after))
        if has_new or self.node is None:
            self._calm_s, self._costs_s = now + CALM_S, min(self._costs_s, now + COSTS_EVERY_S)
        self._update_view(replace(view, cost=self.costs.of(view)), has_new, now)
        early, self._early = self._early, []
        for sender, message in early:
            actions += self.received(sender, message, now)
        return actions

    def _known_stages(self, ring: tuple[tuple[Member, ...], ...]) -> list[int]:
        """Return the places in the ring whose members are known here.

        ring: the trainers, then the stages; place i holds stage i - 1. A trainer knows all stages; a peer knows its own
        stage, those before and after it, and the trainers.
        """
        place = self.stage + 1
        places = {0, place - 1, place, (place + 1) % len(ring)}
        return list(range(len(ring))) if self.stage == TRAINER else sorted(places)

    def _view(self, ring: tuple[tuple[Member, ...], ...]) -> View:
        place = self.stage + 1
        beside = tuple(member.process for member in ring[place] if member.process != self.me)
        before, after = (self._linked(ring[place], ring[at % len(ring)]) for at in (place - 1, place + 1))
        view = View(self.me, self.stage, self.stages, 0, before, beside, after, {})
        return replace(view, capacity=self._units(view))

    def _linked(self, own: tuple[Member, ...], other: tuple[Member, ...]) -> tuple[ProcessId, ...]:
        """Return the processes of another stage that have a link to this one.

        Between large stages only some pairs have one, which both ends derive from their names.
        """
        smaller = min(len(own), len(other))
        processes = [member.process for member in other]
        if smaller <= LINKS:
            return tuple(processes)
        return tuple(process for process in processes if _pair_number(self.me, process) * smaller < LINKS)

    def _units(self, view: View) -> int:
        """Return the own units of flow: a trainer's microbatches of a step, or a peer's part of the step."""
        if self.stage == TRAINER:
            return len(shares(tuple(self._capacity), self.microbatches)[self.me])
        return units(self.me, self._capacity, self.costs.rates(view), self.microbatches, self.most)

    def _update_view(self, view: View, has_new: bool, now: float) -> None:
        """Make the flow machine, or give it the view if that has new processes."""
        if self.node is None:
            trainer = self.stage == TRAINER
            self.node = FlowSource(view, ROUND_S, WORTH) if trainer else FlowRelay(view, self.random, ROUND_S, WORTH)
            self.router.outflow = self.node.outflow
        elif has_new:
            self.node.met(replace(view, capacity=self.node.view.capacity), now)

    def stop(self) -> None:
        """Stop negotiating: this process is no member."""
        self.node, self.router.outflow = None, NO_FLOWS
        self._places.clear()

    def gone(self, process: ProcessId, now: float) -> list[Action]:
        """Handle a process that is dead or serves another stage."""
        if self._places.pop(process, None) is None or self.node is None:
            return []
        self.costs.forget(process)
        self._capacity.pop(process, None)
        return self.send(self.node.gone(process, now))

    def received(self, sender: ProcessId, message: Negotiate, now: float) -> list[Action]:
        """Handle a neighbour's message, or forward it to another neighbour."""
        if self.node is None or sender not in self._places:
            if len(self._early) < EARLY_MAX:
                self._early.append((sender, message))
            return []
        if message.to is not None and message.to != self.me:
            return self._forward(sender, message)
        payload, origin = message.flow, message.origin or sender
        allowed = origin == sender or isinstance(payload, DISTANT)
        placed = self._places[sender] == message.stage
        if not (placed and allowed and is_plausible(payload, origin, self.node.view, self._sources, self.node.dead)):
            return [Count("messages_ignored", "Negotiate")]
        if isinstance(payload, Times):
            self.costs.learn(sender, payload)
            return []
        self._record_via(origin, sender, message)
        return self.send(self.node.handle(origin, payload, now))

    def next_deadline(self) -> float | None:
        """Return when `tick` is due; None: this process takes no part."""
        return None if self.node is None else self._next_s

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        if self.node is None or now < self._next_s:
            return []
        actions: list[Action] = []
        if now >= self._costs_s:
            actions += self.send(self._update_costs(now))
            actions += [Count("routed", by, amount) for by, amount in self.router.counted()]
            if isinstance(self.node, FlowRelay):
                actions += [Count("flow_cost", when, cost_s) for when, cost_s in self.node.solver.weighed()]
        actions += self.send(self.node.tick(now))
        self._next_s = now if self.node.unfinished else now + ROUND_S
        return actions

    def _update_costs(self, now: float) -> list[FlowSend]:
        """Update the costs of the links and the own units, and send measured times that have changed."""
        assert self.node is not None
        calm = now >= self._calm_s
        self._costs_s = now + (COSTS_CALM_EVERY_S if calm else COSTS_EVERY_S)
        costs = self.costs.of(self.node.view)
        if changed(self.node.view.cost, costs):
            self.node.costs_changed(costs, now, calm=calm)
        sends = self.costs.announce(self.node.view)
        if (wanted := self._units(self.node.view)) != self.node.view.capacity:
            sends += self.node.resize(wanted, now)
        return sends

    def _record_via(self, origin: ProcessId, sender: ProcessId, message: Negotiate) -> None:
        """Record that a neighbour reaches the processes two stages away that its message names."""
        payload, named = message.flow, []
        if origin != sender:
            named.append(origin)
        elif isinstance(payload, SideLockRequest):
            named.append(payload.exchange.solver)
        elif isinstance(payload, Locked):
            named += [node for node, _, _ in (*payload.inflow, *payload.outflow)]
        for process in named:
            if process not in self._places:
                self._via.pop(process, None)  # the latest ones come last
                self._via[process] = sender
        while len(self._via) > VIA_MAX:
            del self._via[next(iter(self._via))]

    def _forward(self, sender: ProcessId, message: Negotiate) -> list[Action]:
        """Forward a message to the neighbour that it is for; drop one that may not be forwarded."""
        if message.to not in self._places or message.to is None or not isinstance(message.flow, DISTANT):
            return []
        return [Send(message.to, Negotiate(self.stage, message.flow, origin=sender))]

    def send(self, sends: list[FlowSend]) -> list[Action]:
        """Send messages, directly or through a neighbour; drop those whose receiver cannot be reached."""
        actions: list[Action] = []
        for send in sends:
            via = self._via.get(send.to)
            if send.to in self._places:
                actions.append(Send(send.to, Negotiate(self.stage, send.message)))
            elif via in self._places and via is not None:
                actions.append(Send(via, Negotiate(self.stage, send.message, to=send.to)))
        return actions


def _pair_number(one: ProcessId, other: ProcessId) -> float:
    """Return a number in [0, 1), uniform over pairs of processes, and the same for both ends of a pair."""
    if not one < other:
        return _pair_number(other, one)
    return (crc32(one.name.encode()) ^ crc32(other.name.encode(), 1)) / (1 << 32)


def negotiation_of(
    me: ProcessId,
    stage: int,
    stages: int,
    microbatches: int,
    router: object,
    timer: ComputeTimer,
    without_graph: int = 0,
) -> FlowNegotiation | None:
    """Return the flow negotiation of a process; None: its router follows no flows.

    stage: TRAINER for a trainer. without_graph: microbatches that the process takes without a graph, as a multiple of
    its capacity.
    """
    if not isinstance(router, FlowRouter):
        return None
    random = Random(f"{me.name} {me.incarnation} {stage}")
    return FlowNegotiation(me, stage, stages, microbatches, router, random, timer, most=1 + without_graph)
