"""The flow negotiation of one process, which runs beside its training and continues from one step to the next."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
from swarmflow.core.protocol.types import ProcessId, Roster
from swarmflow.core.routing.flow.costs import changed
from swarmflow.core.routing.flow.negotiation import COSTS_CALM_EVERY_S, COSTS_EVERY_S, TRAINER, NegotiationBase
from swarmflow.core.routing.flow.node_types import FlowSend, View
from swarmflow.core.routing.flow.plausibility import is_plausible
from swarmflow.core.routing.flow.relay import FlowRelay
from swarmflow.core.routing.flow.source import FlowSource

ROUND_S = 0.25  # one round: the assumed time of a message between neighbours
WORTH = 0.005  # the share of a window's cost that an exchange has to save to count as a gain
EARLY_MAX = 64  # kept messages of processes that are not in the roster yet
VIA_MAX = 512  # known processes two stages away
# Messages that may be forwarded to a process two stages away.
DISTANT = (SideLockRequest, SideLocked, LockDenied, Inquire, ApplyExchange, ExchangeTurn, ExchangeTurnTaken)


@dataclass(slots=True)
class FlowNegotiation(NegotiationBase[FlowRelay | FlowSource]):
    """Connects swarmflow's flow machine with its process: it sends and checks messages, and updates views and costs.

    A message for a process two stages away is forwarded by the neighbour that has named that process.
    """

    _via: dict[ProcessId, ProcessId] = field(init=False, default_factory=dict)  # process two stages away -> neighbour
    _early: list[tuple[ProcessId, Negotiate]] = field(init=False, default_factory=list)  # from unknown senders

    def open(self, roster: Roster, now: float) -> list[Action]:
        """Take the roster of a new epoch, and then the messages of its processes that came before it."""
        actions = NegotiationBase.open(self, roster, now)
        if self.node is None:
            return actions
        early, self._early = self._early, []
        for sender, message in early:
            actions += self.received(sender, message, now)
        return actions

    def _update_view(self, view: View, now: float) -> list[Action]:
        node = self.node
        if node is None:
            numbered = round(1000 * now)  # above the numbers of a former machine on this stage, or on another one
            if self.stage == TRAINER:
                self.node = FlowSource(view, ROUND_S, WORTH, numbered)
            else:
                self.node = FlowRelay(view, self.random, ROUND_S, WORTH, numbered)
            self.router.outflow = self.node.outflow
            return []
        former, linked = node.view.linked, view.linked
        if linked == former:
            return []
        unlinked = [process for process in former if process not in linked]
        actions = [action for process in unlinked for action in self._lost(node, process, now)]
        node.met(replace(view, capacity=node.view.capacity), now)
        return actions

    def _lost(self, node: FlowRelay | FlowSource, process: ProcessId, now: float) -> list[Action]:
        return self.send(node.gone(process, now))

    def received(self, sender: ProcessId, message: Negotiate, now: float) -> list[Action]:
        """Handle a neighbour's message, or forward it to another neighbour."""
        if self.node is None or sender not in self._places:
            if len(self._early) < EARLY_MAX:
                self._early.append((sender, message))
            return []
        if message.to is not None and message.to != self.me:
            return self._forward(sender, message)
        payload, origin = message.flow, message.origin or sender
        allowed = origin == sender or (isinstance(payload, DISTANT) and origin not in self._places)
        placed = self._places[sender] == message.stage
        if not (placed and allowed and is_plausible(payload, origin, self.node.view, self._sources, self.node.former)):
            return [Count("messages_ignored", "Negotiate")]
        if isinstance(payload, Times):
            self.costs.learn(sender, payload)
            return []
        self._record_via(origin, sender, message)
        return self.send(self.node.accept(origin, payload, now))

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
        sends = self.costs.announce(self.node.view, now)
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
