"""A process's part in the negotiation of flows, which goes on beside its training and from one step to the next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from zlib import crc32

from swarmflow.core.actions import Action, Count, Send
from swarmflow.core.flow.costs import FlowCosts, changed
from swarmflow.core.flow.messages import (
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
from swarmflow.core.flow.node_types import FlowSend, View
from swarmflow.core.flow.pace import Pace
from swarmflow.core.flow.relay import Relay
from swarmflow.core.flow.router import NO_FLOWS, FlowRouter
from swarmflow.core.flow.source import FlowSource
from swarmflow.core.flow.trust import believable
from swarmflow.core.flow.units import units
from swarmflow.core.messages import Negotiate
from swarmflow.core.source import shares
from swarmflow.core.types import Member, ProcessId, Roster

TRAINER = -1
ROUND_S = 0.25  # taken for the time of a message between any two
COSTS_EVERY_S = 2.0  # they are looked at, while they are not known well
CALM_S = 60.0  # after somebody came or left: then they are known, and looked at
COSTS_CALM_EVERY_S = 20.0
WORTH = 0.005  # of what a part of the swarm costs: less is not worth another exchange
LINKS = 48  # of a process to those of a stage beside its own, about, where both stages are larger
EARLY_MAX = 64  # words of those whom the leader has not told of yet
VIA_MAX = 512
# What may be said to somebody two stages away.
DISTANT = (SideLockRequest, SideLocked, LockDenied, Inquire, ApplyExchange, ExchangeTurn, ExchangeTurnTaken)


@dataclass(slots=True)
class FlowNegotiation:
    """microbatches: of a step. router: follows what is negotiated. random: of this process alone.

    node: the machine that negotiates, while this process takes part. Who stands two stages away is not known here:
    what is for it goes by the neighbour who has named it. A lost message is asked for again, or missed.
    most: microbatches that it takes at a time, times its capacity.
    """

    me: ProcessId
    stage: int
    stages: int
    microbatches: int
    router: FlowRouter
    random: Random
    pace: Pace = field(default_factory=Pace)
    most: int = 1
    node: Relay | FlowSource | None = None
    costs: FlowCosts = field(init=False)
    _places: dict[ProcessId, int] = field(default_factory=dict)
    _capacity: dict[ProcessId, int] = field(default_factory=dict)
    _sources: dict[ProcessId, None] = field(default_factory=dict)
    _via: dict[ProcessId, ProcessId] = field(default_factory=dict)
    _early: list[tuple[ProcessId, Negotiate]] = field(default_factory=list)
    _next_s: float = 0.0
    _costs_s: float = 0.0
    _calm_s: float = 0.0

    def __post_init__(self) -> None:
        self.costs = FlowCosts(lambda: self.pace.compute_s, self.router.link_times.tensor_s)

    def open(self, roster: Roster, now: float) -> list[Action]:
        """These take part from now on: who is not among them has left, and newcomers are met."""
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
        fresh = any(process not in former for process in (*view.before, *view.beside, *view.after))
        if fresh or self.node is None:
            self._calm_s, self._costs_s = now + CALM_S, min(self._costs_s, now + COSTS_EVERY_S)
        self._meet(replace(view, cost=self.costs.of(view)), fresh, now)
        early, self._early = self._early, []
        for sender, message in early:
            actions += self.received(sender, message, now)
        return actions

    def _known_stages(self, ring: tuple[tuple[Member, ...], ...]) -> list[int]:
        """Their numbers in the ring. A trainer knows all of them, a peer those beside its own, and the trainers."""
        place = self.stage + 1
        near = {0, place - 1, place, (place + 1) % len(ring)}
        return list(range(len(ring))) if self.stage == TRAINER else sorted(near)

    def _view(self, ring: tuple[tuple[Member, ...], ...]) -> View:
        place = self.stage + 1
        beside = tuple(member.process for member in ring[place] if member.process != self.me)
        before, after = (self._linked(ring[place], ring[at % len(ring)]) for at in (place - 1, place + 1))
        view = View(self.me, self.stage, self.stages, 0, before, beside, after, {})
        return replace(view, capacity=self._units(view))

    def _linked(self, own: tuple[Member, ...], other: tuple[Member, ...]) -> tuple[ProcessId, ...]:
        """Those of a stage to whom there are links. Of large stages either end finds out who is linked to whom."""
        near = min(len(own), len(other))
        processes = [member.process for member in other]
        if near <= LINKS:
            return tuple(processes)
        return tuple(process for process in processes if _lot(self.me, process) * near < LINKS)

    def _units(self, view: View) -> int:
        """Of flow: of a trainer, the microbatches that it forms; of a peer, its part of those of the step."""
        if self.stage == TRAINER:
            return len(shares(tuple(self._capacity), self.microbatches)[self.me])
        return units(self.me, self._capacity, self.costs.rates(view), self.microbatches, self.most)

    def _meet(self, view: View, fresh: bool, now: float) -> None:
        if self.node is None:
            trains = self.stage == TRAINER
            self.node = FlowSource(view, ROUND_S, WORTH) if trains else Relay(view, self.random, ROUND_S, WORTH)
            self.router.outflow = self.node.outflow
        elif fresh:
            self.node.met(replace(view, capacity=self.node.view.capacity), now)

    def stop(self) -> None:
        """This process takes no part."""
        self.node, self.router.outflow = None, NO_FLOWS
        self._places.clear()

    def gone(self, process: ProcessId, now: float) -> list[Action]:
        """A process is dead, or in another place."""
        if self._places.pop(process, None) is None or self.node is None:
            return []
        self.costs.forget(process)
        self._capacity.pop(process, None)
        return self.tell(self.node.gone(process, now))

    def received(self, sender: ProcessId, message: Negotiate, now: float) -> list[Action]:
        """A neighbour negotiates, or has something passed on."""
        if self.node is None or sender not in self._places:
            if len(self._early) < EARLY_MAX:
                self._early.append((sender, message))
            return []
        if message.to is not None and message.to != self.me:
            return self._pass_on(sender, message)
        payload, who = message.word, message.origin or sender
        distant = who == sender or isinstance(payload, DISTANT)
        placed = self._places[sender] == message.stage
        if not (placed and distant and believable(payload, who, self.node.view, self._sources, self.node.dead)):
            return [Count("messages_ignored", "Negotiate")]
        if isinstance(payload, Times):
            self.costs.learn(sender, payload)
            return []
        self._note(who, sender, message)
        return self.tell(self.node.handle(who, payload, now))

    def next_deadline(self) -> float | None:
        """When tick is due; None: there is nothing to negotiate."""
        return None if self.node is None else self._next_s

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if self.node is None or now < self._next_s:
            return []
        actions: list[Action] = []
        if now >= self._costs_s:
            actions += self.tell(self._weigh(now))
            actions += [Count("routed", by, amount) for by, amount in self.router.counted()]
        actions += self.tell(self.node.tick(now))
        self._next_s = now if self.node.unfinished else now + ROUND_S
        return actions

    def _weigh(self, now: float) -> list[FlowSend]:
        """Whether links cost something else by now."""
        assert self.node is not None
        calm = now >= self._calm_s
        self._costs_s = now + (COSTS_CALM_EVERY_S if calm else COSTS_EVERY_S)
        costs = self.costs.of(self.node.view)
        if changed(self.node.view.cost, costs):
            self.node.costs_changed(costs, now, calm=calm)
        sends = self.costs.tell(self.node.view)
        if (wanted := self._units(self.node.view)) != self.node.view.capacity:
            sends += self.node.resize(wanted, now)
        return sends

    def _note(self, who: ProcessId, sender: ProcessId, message: Negotiate) -> None:
        """By whom those are reached that are not known here."""
        payload, found = message.word, []
        if who != sender:
            found.append(who)
        elif isinstance(payload, SideLockRequest):
            found.append(payload.exchange.solver)
        elif isinstance(payload, Locked):
            found += [node for node, _, _ in (*payload.inflow, *payload.outflow)]
        for process in found:
            if process not in self._places:
                self._via.pop(process, None)
                self._via[process] = sender
        while len(self._via) > VIA_MAX:
            del self._via[next(iter(self._via))]

    def _pass_on(self, sender: ProcessId, message: Negotiate) -> list[Action]:
        if message.to not in self._places or message.to is None or not isinstance(message.word, DISTANT):
            return []
        return [Send(message.to, Negotiate(self.stage, message.word, origin=sender))]

    def tell(self, sends: list[FlowSend]) -> list[Action]:
        """Send words to those for whom they are."""
        actions: list[Action] = []
        for send in sends:
            via = self._via.get(send.to)
            if send.to in self._places:
                actions.append(Send(send.to, Negotiate(self.stage, send.message)))
            elif via in self._places and via is not None:
                actions.append(Send(via, Negotiate(self.stage, send.message, to=send.to)))
        return actions


def _lot(one: ProcessId, other: ProcessId) -> float:
    """An even number in [0, 1) that belongs to a pair, whichever end asks."""
    return (crc32(one.name.encode()) ^ crc32(other.name.encode(), 1)) / (1 << 32) if one < other else _lot(other, one)


def negotiation_of(
    me: ProcessId, stage: int, stages: int, microbatches: int, router: object, without_graph: int = 0
) -> FlowNegotiation | None:
    """Of a process of this stage; -1: of a trainer. None: its router follows no flows.

    without_graph: microbatches that it takes without a graph, times its capacity.
    """
    if not isinstance(router, FlowRouter):
        return None
    random = Random(f"{me.name} {me.incarnation} {stage}")
    return FlowNegotiation(me, stage, stages, microbatches, router, random, most=1 + without_graph)
