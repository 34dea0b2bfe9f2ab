"""The flow machine of a peer: extends flows from stage to stage, and takes part in exchanges that save cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from swarmflow.core.protocol.messages.negotiation import (
    ApplyExchange,
    Drop,
    ExchangeTurn,
    ExchangeTurnTaken,
    Inquire,
    Label,
    LockDenied,
    Locked,
    LockRequest,
    ReleaseUnits,
    ReserveUnits,
    SideLocked,
    SideLockRequest,
    TraceFlow,
    UnitsReserved,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.exchange import Solver
from swarmflow.core.routing.flow.exchange_calls import QUIET_ROUNDS, ExchangeCalls
from swarmflow.core.routing.flow.labels import Labels, worth_announcing
from swarmflow.core.routing.flow.node import NodeBase
from swarmflow.core.routing.flow.node_types import FlowSend, View

PATIENCE_ROUNDS = 8.0  # before loose units without a next hop are dropped
ORPHAN_ROUNDS = 12.0  # before orphans are released
RELEASED_EARLIER = 0.75  # share of these that released units skip: the node that released them has waited
LABEL_INTERVAL_ROUNDS = 1.0  # between two labels while flows are built
LABEL_INTERVAL_CALM_ROUNDS = 24.0  # between two labels, once no reservation was made here for as long
LABEL_REPEAT_ROUNDS = 30.0  # before an unchanged label is repeated; doubled at each repetition
LABEL_REPEAT_MAX_ROUNDS = 960.0
AVOID_ROUNDS = 3.0  # before another request to a node that answered that it is locked


class FlowRelay(NodeBase):
    """Announces labels, extends flows by reservations, and takes part in exchanges.

    A unit that has an inflow but no next hop is loose; one that has an outflow but no inflow is an orphan (Books).
    random: of this node alone. worth: the share of a window's cost that an exchange has to save to count as a gain.
    """

    def __init__(self, view: View, random: Random, round_s: float = 1.0, worth: float = 0.0, numbered: int = 0) -> None:
        super().__init__(view, round_s, numbered)
        self.labels = Labels(view.cost)
        self.solver = Solver(view, random, round_s, worth, numbered)
        self.calls = ExchangeCalls(self.solver, random, round_s)
        self._announced: Label | None = None  # the latest label that was sent
        self._announced_at = -LABEL_INTERVAL_CALM_ROUNDS * round_s  # when it was sent
        self._compared_at = -LABEL_INTERVAL_ROUNDS * round_s  # when the label was last compared with the announced one
        self._refresh = LABEL_REPEAT_ROUNDS  # before an unchanged label is repeated
        self._active_at = 0.0  # when a reservation was last requested or handled here
        self._stuck_since: dict[ProcessId, float] = {}  # data node -> since when its loose units have no next hop
        self._orphans_since: dict[ProcessId, float] = {}  # data node -> since when it has orphans here
        # data node -> (number of its latest trace, next hops of the units that no message of this trace has followed)
        self._traced: dict[ProcessId, tuple[int, list[ProcessId]]] = {}

    def received(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message that the base class does not handle."""
        match message:
            case Label():
                self.labels.received(sender, message)
            case ReserveUnits():
                return self._reserve(sender, message, now)
            case UnitsReserved():
                self._units_reserved(sender, message, now)
            case Drop():
                self.dropped(sender, message, now)
            case ReleaseUnits():
                self.released(sender, message, now)
                self._orphans_since.setdefault(message.source, now - RELEASED_EARLIER * ORPHAN_ROUNDS * self.round_s)
            case LockRequest():
                return self._lock_requested(message, now)
            case Locked():
                return self.solver.member_locked(sender, message)
            case SideLocked():
                return self.solver.side_locked(sender, message)
            case LockDenied():
                self.solver.denied(sender, message)
            case TraceFlow():
                return self._trace(message, now)
            case ExchangeTurn():
                self.calls.turn_arrived(message, now)
                return [FlowSend(sender, ExchangeTurnTaken(), "taken")]
            case ExchangeTurnTaken():
                self.calls.turn_taken()
            case Inquire():
                return self.solver.inquired(sender, message)
            case ApplyExchange():
                return self._apply(message, now)
        return []

    def tick(self, now: float) -> list[FlowSend]:
        """Do what is due."""
        sends = self.solver.tick(now)
        if self.solver.solving:
            return sends
        sends = self._apply_own(sends, now)
        sends += self.repeat(now)
        for source in self.books.sources:
            sends += self._extend(source, now)
            sends += self._release_orphans(source, now)
        self.books.forget_idle(self.former)
        sends += self._announce(now)
        sends += self.watch(now)
        sends += self.calls.repeat(now)
        sends += self._call(now)
        return sends

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """Handle the death of a process that this node knows."""
        self.forget(process, now)
        self.labels.forget(process)
        self._traced.pop(process, None)
        self.solver.gone(process)
        self.view = self.solver.view = self.view.without(process)
        self.calls.changed(now)
        return self.handle_deferred(now)

    def met(self, view: View, now: float) -> None:
        """Replace the view: nodes have entered."""
        self.update_view(view)
        self.solver.view = view
        self.labels.cost = view.cost
        self._announced = None  # the new nodes need the label soon
        self._announced_at = now - LABEL_INTERVAL_CALM_ROUNDS * self.round_s
        self.calls.changed(now)

    def resize(self, capacity: int, now: float) -> list[FlowSend]:
        """Change the number of units that this node may hold.

        A surplus is removed on both sides, unless a lock or a pending reservation forbids it. What cannot be removed
        stays, and the capacity includes it until the next call.
        """
        sends = []
        surplus = self.held - capacity
        if surplus > 0 and not self.lock.locked and not self.reservations.pending:
            for source in self.books.sources:
                units = min(surplus, sum(n for (_, of), n in self.books.inflow.items() if of == source))
                if units > 0 and self.books.loose(source) == 0:
                    sends += self._remove_units(False, source, units, now)
                    sends += self._remove_units(True, source, units, now)
                    surplus -= units
        self.update_view(replace(self.view, capacity=max(capacity, self.held)))
        self.solver.view = self.view
        return sends

    def costs_changed(self, costs: Mapping[ProcessId, float], now: float, *, calm: bool = False) -> None:
        """Replace the costs of all links. calm: measured times have drifted as usual, so an exchange is not urgent."""
        self.view = self.solver.view = replace(self.view, cost=costs)
        self.labels.cost = costs
        if calm:
            self.calls.drifted(now)
        else:
            self.calls.changed(now)

    @property
    def unfinished(self) -> bool:
        """Return whether a computation is unfinished, so that `tick` should be called again at once."""
        return self.solver.solving

    @property
    def held(self) -> int:
        """Return the units of capacity that are in use."""
        return self.books.held

    def _trace(self, message: TraceFlow, now: float) -> list[FlowSend]:
        """Forward a trace along a unit that no other message of the same trace has followed."""
        number, hops = self._traced.get(message.source, (-1, []))
        if number < message.number:
            links = sorted(self.books.outflow.items())
            hops = [node for (node, source), n in links if source == message.source for _ in range(n)]
            self._traced[message.source] = message.number, hops
        if number > message.number or not hops:
            return []
        onward = TraceFlow(message.source, message.number, (*message.path, self.view.me))
        return [self.reliable.wrap(FlowSend(hops.pop(0), onward, "one of its units"), now)]

    def _label(self) -> Label:
        """Return the label for the stage before. A full node offers only paths to data nodes with orphans here."""
        costs = self.labels.costs()
        room = max(0, self.books.room)
        orphans = {source: max(0, -self.books.loose(source)) for source in costs}
        reachable = tuple((s, costs[s], orphans[s]) for s in sorted(costs) if room or orphans[s])
        return Label(room, reachable, self.view.capacity, self.labels.width)

    def _announce(self, now: float) -> list[FlowSend]:
        """Send the label to the stage before if it has changed or is due for repetition, at a limited rate."""
        calm = now - self._active_at > LABEL_INTERVAL_CALM_ROUNDS * self.round_s
        every_s = LABEL_INTERVAL_ROUNDS * self.round_s
        if (
            now - self._announced_at < (LABEL_INTERVAL_CALM_ROUNDS * self.round_s if calm else every_s)
            or now - self._compared_at < every_s
        ):
            return []
        self._compared_at = now
        label = self._label()
        if worth_announcing(self._announced, label):
            self._refresh = LABEL_REPEAT_ROUNDS
        elif self._announced is not None and now - self._announced_at >= self._refresh * self.round_s:
            self._refresh = min(LABEL_REPEAT_MAX_ROUNDS, 2 * self._refresh)  # the last one may have been lost
        else:
            return []
        self._announced, self._announced_at = label, now
        return [FlowSend(node, label, "it has changed") for node in self.view.before]

    def _reserve(self, sender: ProcessId, message: ReserveUnits, now: float) -> list[FlowSend]:
        """Grant as many units as there is room for; units that continue at orphans need no room."""
        self._active_at = now
        self.calls.changed(now)
        if (earlier := self.reservations.answer_given(sender, message.number)) is not None:
            return [FlowSend(sender, earlier, "asked again")]
        if self.lock.holder(outward=False) is not None:
            answer = UnitsReserved(message.source, 0, message.number, self._label(), True)
            return [FlowSend(sender, answer, "locked")]
        orphans = max(0, -self.books.loose(message.source))
        count = min(message.count, orphans + max(0, self.books.room))
        if count > 0:
            self.books.add(False, sender, message.source, count, now)
        answer = UnitsReserved(message.source, count, message.number, self._label())
        if count:
            self.reservations.keep_answer(sender, answer)
        return [FlowSend(sender, answer, "room")]

    def _units_reserved(self, sender: ProcessId, message: UnitsReserved, now: float) -> None:
        self.labels.received(sender, message.label)
        if message.busy:
            self.avoid[sender] = now + AVOID_ROUNDS * self.round_s
        self.answered(sender, message, now)

    def _extend(self, source: ProcessId, now: float) -> list[FlowSend]:
        """Request next hops for loose units of a data node; drop them once there has been none for PATIENCE_ROUNDS."""
        loose = self.books.loose(source) - self.reservations.pending_units(source)
        if loose <= 0:
            self._stuck_since.pop(source, None)
            return []
        if self.lock.holder(outward=True) is not None:
            return []
        sends = []
        for path in self.labels.paths(source):
            if loose <= 0:
                break
            if self.avoid.get(path.node, 0.0) > now:
                continue
            count = min(loose, path.units)
            self.labels.take(path.node, count)
            sends.append(self.reservations.request(path.node, source, count, now, f"costs {path.cost:g} to the end"))
            loose -= count
            self._active_at = now
        if sends or self.reservations.pending_units(source):
            self._stuck_since.pop(source, None)
        elif now - self._stuck_since.setdefault(source, now) >= PATIENCE_ROUNDS * self.round_s and not self.lock.locked:
            return self._remove_units(False, source, loose, now)
        return sends

    def _remove_units(self, outward: bool, source: ProcessId, count: int, now: float) -> list[FlowSend]:
        """Remove units from one side, from the most expensive links first, and notify the other ends."""
        sends = []
        table = self.books.outflow if outward else self.books.inflow
        links = [(self.view.cost[node], node, n) for (node, s), n in table.items() if s == source]
        for _, node, n in sorted(links, reverse=True):
            units = min(n, count)
            if units > 0:
                self.books.add(outward, node, source, -units, now)
                if outward:
                    sends.append(FlowSend(node, ReleaseUnits(source, units), "orphans, or a surplus"))
                else:
                    sends.append(FlowSend(node, Drop(source, units), "no next hop, or a surplus"))
                count -= units
        return sends

    def _release_orphans(self, source: ProcessId, now: float) -> list[FlowSend]:
        """Release orphans that no reservation has continued for ORPHAN_ROUNDS: they occupy capacity for nothing."""
        orphans = -self.books.loose(source)
        if orphans <= 0:
            self._orphans_since.pop(source, None)
            return []
        if self.lock.locked or now - self._orphans_since.setdefault(source, now) < ORPHAN_ROUNDS * self.round_s:
            return []
        return self._remove_units(True, source, orphans, now)

    def _lock_requested(self, message: LockRequest, now: float) -> list[FlowSend]:
        """Lock both sides and report the links; at the edge of the window, ask the neighbours outside to lock too."""
        exchange = message.exchange
        if self.lock.finished(exchange):
            return []
        if self.reservations.pending or not self.lock.acquire(exchange, (False, True), now):
            return [FlowSend(exchange.solver, LockDenied(exchange), "a reservation is pending, or locked")]
        self.calls.preempted(now)
        sends = [FlowSend(exchange.solver, self._offer(message), "locked")]
        for at_edge, outward in ((message.before, False), (message.after, True)):
            if at_edge:
                sends += [
                    FlowSend(node, SideLockRequest(exchange, not outward), "a neighbour of the window")
                    for node in self.books.neighbours(outward)
                ]
        return sends

    def _offer(self, message: LockRequest) -> Locked:
        """Return the links of this node, for the solver."""
        view = self.view
        costs = tuple((node, view.cost[node]) for node in (*view.before, *view.after))
        return Locked(message.exchange, view.capacity, self.books.counts(False), self.books.counts(True), costs)

    def _apply(self, message: ApplyExchange, now: float) -> list[FlowSend]:
        """Apply the outcome of an exchange, and handle the messages that were deferred by the lock."""
        if self.apply(message, now) and message.stir:
            self.calls.changed(now)
        return self.handle_deferred(now)

    def _apply_own(self, sends: list[FlowSend], now: float) -> list[FlowSend]:
        """Apply the outcome of an own exchange to this node; return the messages to the other nodes."""
        others = [send for send in sends if send.to != self.view.me]
        for send in sends:
            if send.to == self.view.me:
                others += self._apply(send.message, now)
                others += self.calls.solved(now)
        return others

    def _call(self, now: float) -> list[FlowSend]:
        """Start an own exchange when it is due, unless a lock or a recent reservation prevents it."""
        if not self.calls.due(now) or self.solver.open is not None:
            return []
        if self.lock.locked or self.reservations.pending or now - self._active_at < QUIET_ROUNDS * self.round_s:
            self.calls.postpone(now)
            return []
        self.calls.called()
        exchange = self.solver.next_exchange()
        self.lock.acquire(exchange, (False, True), now)
        return self.solver.start(self._offer(LockRequest(exchange, False, False)), now)
