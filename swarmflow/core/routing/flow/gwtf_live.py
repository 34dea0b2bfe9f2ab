"""GWTF's negotiation of one process, which runs beside its training and continues from one step to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Negotiate
from swarmflow.core.protocol.messages.gwtf import (
    FlowApproved,
    FlowDropped,
    FlowId,
    FlowQuery,
    FlowRejected,
    FlowReport,
    Greeting,
    InOrder,
    InOrderAck,
    OrderedGwtfMessage,
    RequestFlow,
)
from swarmflow.core.protocol.messages.negotiation import Times
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow import plausibility
from swarmflow.core.routing.flow.annealing import TEMPERATURE
from swarmflow.core.routing.flow.costs import changed
from swarmflow.core.routing.flow.gwtf import GwtfRelay
from swarmflow.core.routing.flow.gwtf_flows import Outflow, Outflows
from swarmflow.core.routing.flow.gwtf_plausibility import ends, is_plausible
from swarmflow.core.routing.flow.gwtf_source import GwtfSource
from swarmflow.core.routing.flow.gwtf_swaps import Objective
from swarmflow.core.routing.flow.in_order import ArrivalOrder, OrderedDelivery
from swarmflow.core.routing.flow.negotiation import COSTS_CALM_EVERY_S, COSTS_EVERY_S, TRAINER, NegotiationBase
from swarmflow.core.routing.flow.node_types import INFINITE, FlowSend, View

ROUND_S = 0.5  # GWTF, VI, Ablation studies: 120 iterations are "roughly a minute"
PAUSE_MAX_S = 120.0  # a calm node that nothing happens to asks less and less often for swaps, in the end at this pace
MATES = 24  # approximate peers of the own stage that a node asks for swaps, where there are more
MEAN_COST = 10.0  # of a link in GWTF's Table V, where T is 1.7: the temperature is as high in proportion here
LOSS_MAX = 8.0  # times the own temperature: what a change costs at most that another node's annealing wants; it may lie
UNKNOWN_S = 20.0  # how long a message that names an unknown process waits for the roster that has it
REQUEST_TIMEOUT_S = 60.0  # after which a request for a flow that was not answered counts as rejected
GONE_MAX = 512  # processes that are remembered as dead: late messages name them
TRANSFERS_MAX = 1024  # remembered transfers of flows, for messages that come too late

GwtfNode = GwtfRelay | GwtfSource


@dataclass(slots=True)
class LiveGwtf(NegotiationBase[GwtfNode]):
    """Connects a GWTF machine with its process: it sends and checks messages, and updates views and costs.

    The machine needs the order in which a neighbour has sent its messages, and none may be lost: `OrderedDelivery`.
    """

    objective: Objective = "minmax"
    delivery: OrderedDelivery = field(init=False, default_factory=lambda: OrderedDelivery(ROUND_S))
    _cost: dict[ProcessId, float] = field(init=False, default_factory=dict)  # of the view; infinite: gone
    _gone: dict[ProcessId, None] = field(init=False, default_factory=dict)  # processes that are dead, or left a stage
    # The own outflow of the open request and when that was sent, by (node of the next stage, data node).
    _requested: dict[tuple[ProcessId, ProcessId], tuple[FlowId, float]] = field(init=False, default_factory=dict)
    _unknown_s: dict[ProcessId, float] = field(init=False, default_factory=dict)  # sender -> since when it waits
    _node_s: float = field(init=False, default=0.0)  # when the machine is ticked
    _pause_s: float = field(init=False, default=ROUND_S)  # between two ticks of the machine

    def _update_view(self, view: View, now: float) -> list[Action]:
        for process in view.linked:
            if process in self._gone:
                del self._gone[process], self._cost[process]
        view = replace(view, beside=self.some(view.beside, len(view.beside), MATES), cost=self._cost)
        node = self.node
        if node is None:
            self._cost.update(self.costs.of(view))
            self.node, self._node_s = self._machine(view, now), now
            return self._greet(view, (), now)
        linked = view.linked
        if linked == node.view.linked:
            return []
        self._wake(now)
        unlinked = [process for process in node.view.linked if process not in linked]
        actions = [action for process in unlinked for action in self._lost(node, process, now)]
        self._cost.update({node: cost for node, cost in self.costs.of(view).items() if node not in self._cost})
        former = node.view.linked
        actions += self._send(node.met(replace(view, capacity=node.view.capacity)), now)
        return actions + self._greet(view, former, now)

    def _greet(self, view: View, former: Collection[ProcessId], now: float) -> list[Action]:
        """Greet new neighbours: one that still believes in flows of an earlier session forgets them."""
        fresh = [process for process in view.linked if process not in former]
        return self._send([FlowSend(process, Greeting(), "it is new") for process in fresh], now)

    def _machine(self, view: View, now: float) -> GwtfNode:
        if self.stage == TRAINER:
            return GwtfSource(view)
        relay = GwtfRelay(view, self.random, self.objective, ROUND_S)
        relay.flows.made = round(1000 * now)  # flows that it had on this stage before may go elsewhere now
        relay.swaps.annealing.loss_max = LOSS_MAX
        relay.swaps.annealing.temperature = TEMPERATURE / MEAN_COST * _mean_cost(view)
        return relay

    def stop(self) -> None:
        """Stop negotiating: this process is no member."""
        NegotiationBase.stop(self)
        self.delivery = OrderedDelivery(ROUND_S)
        for table in (self._cost, self._gone, self._requested, self._unknown_s):
            table.clear()

    def _lost(self, node: GwtfNode, process: ProcessId, now: float) -> list[Action]:
        self.delivery.forget(process)
        self._unknown_s.pop(process, None)
        self._note_gone(process)
        self._wake(now)
        return self._unpair(node, process, now)

    def _wake(self, now: float) -> None:
        """Have the machine act in a round, and in each round after that for a while: something has changed."""
        self._pause_s, self._node_s = ROUND_S, min(self._node_s, now + ROUND_S)
        self._next_s = min(self._next_s, self._node_s)

    def _note_gone(self, process: ProcessId) -> None:
        self._gone[process], self._cost[process] = None, INFINITE
        while len(self._gone) > GONE_MAX:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._cost.pop(oldest, None)

    def _unpair(self, node: GwtfNode, process: ProcessId, now: float) -> list[Action]:
        """Have the machine unpair all flows from and to a process."""
        self._requested = {key: request for key, request in self._requested.items() if key[0] != process}
        return self._send(node.gone(process, now), now)

    def received(self, sender: ProcessId, message: Negotiate, now: float) -> list[Action]:
        """Handle a neighbour's message. One of a process that is not known yet is dropped: it will be repeated."""
        node, payload = self.node, message.flow
        if node is None or sender not in self._places:
            return []
        forged = message.origin is not None or message.to is not None or self._places[sender] != message.stage
        match payload:
            case _ if forged:
                pass
            case Times() if plausibility.is_plausible(payload, sender, node.view, (), ()):
                self.costs.learn(sender, payload)
                return []
            case InOrderAck() if is_plausible(payload, sender, node.view):
                known = self.delivery.acknowledged(sender, payload, now)
                return [] if known else self._restart(node, sender, now)
            case InOrder() if is_plausible(payload, sender, node.view):
                return self._in_order(node, sender, payload, now)
            case FlowQuery() | FlowReport() if is_plausible(payload, sender, node.view):
                return self._send(node.handle(sender, payload, now), now)
        return [Count("messages_ignored", "Negotiate")]

    def _in_order(self, node: GwtfNode, sender: ProcessId, message: InOrder, now: float) -> list[Action]:
        """Handle the next message of a neighbour."""
        content = message.message
        if self._waits(sender, content, now):
            return []
        arrival = self.delivery.arrived(sender, message)
        self._next_s = min(self._next_s, now + ROUND_S / 2)  # for the acknowledgement
        if arrival is ArrivalOrder.OTHER:
            return []
        actions = self._restart(node, sender, now, begun=True) if arrival is ArrivalOrder.RESTART else []
        if not is_plausible(content, sender, node.view) or not self._placed(content, node.view):
            return [*actions, Count("messages_ignored", "Negotiate")]
        self._wake(now)
        undone = self._undo(sender, content)
        actions += self._send(node.handle(sender, content, now) if undone is None else undone, now)
        for process in dict.fromkeys(process for process, _ in (*node.inflow, *node.outflow)):
            if process in self._gone:  # a message that was sent before the news of its death has named it
                actions += self._unpair(node, process, now)
        self.router.outflow = node.outflow
        return actions

    def _waits(self, sender: ProcessId, content: OrderedGwtfMessage, now: float) -> bool:
        """Return whether a message names a process that is not known yet: its sender will repeat it.

        After UNKNOWN_S the process counts as dead.
        """
        to, of, sources = ends(content)
        unknown = [process for process in (*to, *of) if process not in self._places]
        unknown += [source for source in sources if source not in self._sources]
        unknown = [process for process in unknown if process not in self._gone]
        if unknown and now - self._unknown_s.setdefault(sender, now) < UNKNOWN_S:
            return True
        self._unknown_s.pop(sender, None)
        for process in unknown:
            self._note_gone(process)
        return False

    def _placed(self, content: OrderedGwtfMessage, view: View) -> bool:
        """Return whether the processes that a message names serve the stages that it means, or did."""
        to, of, sources = ends(content)
        return (
            all(process in view.after or process in self._gone for process in to)
            and all(process in view.before or process in self._gone for process in of)
            and all(source in self._sources for source in sources)
        )

    def _undo(self, sender: ProcessId, content: OrderedGwtfMessage) -> list[FlowSend] | None:
        """Return the messages that undo what the sender grants, where this node did not ask for it.

        None: it may be handled.
        """
        match content:
            case FlowApproved() | FlowRejected():
                key = sender, content.source
                if key in self._requested and self._requested[key][0] == content.flow:
                    del self._requested[key]
                elif isinstance(content, FlowApproved):
                    return [FlowSend(sender, FlowDropped(content.downstream_flow, self.me, content.flow), "not asked")]
                else:
                    return []
        return None

    def _restart(self, node: GwtfNode, sender: ProcessId, now: float, *, begun: bool = False) -> list[Action]:
        """Begin anew with a neighbour that has forgotten this node. begun: its new session has."""
        view = node.view
        self.delivery.forget(sender, begun=begun)
        return self._unpair(node, sender, now) + self._send(node.met(view), now)

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        node = self.node
        if node is None or now < self._next_s:
            return []
        actions: list[Action] = []
        if now >= self._costs_s:
            actions += self._update_costs(node, now)
            actions += [Count("routed", by, amount) for by, amount in self.router.counted()]
        if now >= self._node_s:
            self._give_up_requests(node, now)
            for flows in _tables(node):
                _trim(flows)
            actions += self._send(node.tick(now), now)
            self._pause_s = ROUND_S if now < self._calm_s else min(2 * self._pause_s, PAUSE_MAX_S)
            self._node_s = now + self._pause_s
        actions += self._deliver(self.delivery.tick(now))
        self.router.outflow = node.outflow
        self._next_s = min(self._node_s, self._costs_s, now + ROUND_S if self.delivery.busy else INFINITE)
        return actions

    def _give_up_requests(self, node: GwtfNode, now: float) -> None:
        """Take requests for rejected that were not answered for long; a late approval is dropped."""
        for key, (flow, sent_at_s) in list(self._requested.items()):
            if now - sent_at_s >= REQUEST_TIMEOUT_S:
                del self._requested[key]
                node.handle(key[0], FlowRejected(key[1], INFINITE, flow), now)

    def _update_costs(self, node: GwtfNode, now: float) -> list[Action]:
        """Update the costs of the links and the own units, and send measured times that have changed."""
        self._costs_s = now + (COSTS_CALM_EVERY_S if now >= self._calm_s else COSTS_EVERY_S)
        costs, sends = self.costs.of(node.view), list[FlowSend]()
        if changed({process: self._cost[process] for process in costs}, costs):
            former_s = _mean_cost(node.view)
            for flows in _tables(node):
                _revalue(flows, self._cost, costs)
            self._cost.update(costs)
            if isinstance(node, GwtfRelay):
                node.swaps.annealing.temperature *= _mean_cost(node.view) / former_s
                sends += node.flows.broadcast()
        wanted = max(self._units(node.view), node.held)
        if wanted != node.view.capacity:
            sends += node.met(replace(node.view, capacity=wanted))
            if isinstance(node, GwtfSource):
                _resize(node.sink, wanted)
        return self._deliver(self.costs.announce(node.view, now)) + self._send(sends, now)

    def _send(self, sends: list[FlowSend], now: float) -> list[Action]:
        """Send messages of the machine to those that are still neighbours: in order what changes flows."""
        actions: list[Action] = []
        full: dict[ProcessId, None] = {}
        for send in sends:
            if send.to not in self._places:
                continue
            unordered = isinstance(send.message, FlowQuery | FlowReport)
            if not unordered and self.delivery.is_full(send.to):
                full[send.to] = None
                continue
            if isinstance(send.message, RequestFlow):
                self._requested[send.to, send.message.source] = send.message.flow, now
            actions += self._deliver([send if unordered else self.delivery.wrap(send, now)])
        self._next_s = min(self._next_s, now + ROUND_S) if self.delivery.busy else self._next_s
        for process in full:  # the other end would believe in flows that have ended here
            assert self.node is not None, "only its machine sends"
            actions += self._restart(self.node, process, now)
            actions += self._send([FlowSend(process, Greeting(), "begins anew")], now)
        return actions

    def _deliver(self, sends: list[FlowSend]) -> list[Action]:
        return [Send(send.to, Negotiate(self.stage, send.message)) for send in sends if send.to in self._places]


def _tables(node: GwtfNode) -> tuple[Outflows, ...]:
    return (node.flows,) if isinstance(node, GwtfRelay) else (node.sink, node.head)


def _mean_cost(view: View) -> float:
    """Return the mean cost of the links to the next stage."""
    return fmean(view.cost[node] for node in view.after) if view.after else 1.0


def _revalue(flows: Outflows, former: Mapping[ProcessId, float], costs: Mapping[ProcessId, float]) -> None:
    """Change the costs of outflows by what their first links cost more than before."""
    for unit in flows.table.values():
        if unit.downstream is not None and unit.downstream.node in costs:
            unit.cost += costs[unit.downstream.node] - former[unit.downstream.node]


def _trim(flows: Outflows) -> None:
    """Forget the oldest transfers."""
    for transfers in (flows.redirected, flows.swapped):
        for flow in list(transfers)[:-TRANSFERS_MAX]:
            del transfers[flow]


def _resize(sink: Outflows, wanted: int) -> None:
    """Have a data node want so many flows: more unpaired outflows, or fewer of them."""
    unpaired = [unit for unit in sink.table.values() if unit.upstream is None]
    for unit in unpaired[: max(0, len(sink.table) - wanted)]:
        del sink.table[unit.flow]
    while len(sink.table) < wanted:
        unit = Outflow(sink.name(), sink.view.me, 0.0)
        sink.table[unit.flow] = unit
