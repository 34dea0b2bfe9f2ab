"""A relay: passes flows on from the stage before to the stage after, and takes part in making them cheaper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from swarmflow.core.flow.exchange import MEMBERS_MAX, Solver
from swarmflow.core.flow.labels import Labels, worth_telling
from swarmflow.core.flow.messages import (
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
from swarmflow.core.flow.node import NodeBase
from swarmflow.core.flow.node_types import FlowSend, View
from swarmflow.core.types import ProcessId

TURN_WAITED = 6.0  # times a message's: then the turn is given to another one
PATIENCE = 8.0  # a unit that cannot go on is given back
HOLD = 12.0  # an orphan is let go
LABEL_EVERY = 1.0  # while flows are built; else
LABEL_CALM = 24.0
LABEL_REFRESH = 30.0  # told again although nothing has changed, ever more rarely
LABEL_REFRESH_MAX = 960.0
AVOID = 3.0  # a node that stands still is not asked again
SPREAD = 3.0  # times a message's and the nodes around: the first exchange mostly comes before the second is called
SPREAD_CALM = 120.0  # the same, where nothing but measured times has changed
QUIET = 7.0  # after the last reservation here an exchange may be called
RETRY = (2.0, 8.0)  # when an exchange could not be called, or found too few who stood still


class Relay(NodeBase):
    """random: of the own node alone. worth: an exchange that saves a smaller share of its costs is the last one.

    Something has changed here (flows were built, somebody died, a cost is another one): after a random time the node
    calls an exchange, unless another one has asked it meanwhile. Who has solved one passes the turn on, two stages
    further along the ring, until a whole round of exchanges has saved nothing.
    """

    def __init__(self, view: View, random: Random, round_s: float = 1.0, worth: float = 0.0) -> None:
        super().__init__(view, round_s)
        self.random = random
        self.labels = Labels(view.cost)
        self.solver = Solver(view, random, round_s, worth)
        self._announced: Label | None = None
        self._announced_at = -LABEL_CALM * round_s
        self._looked_at = -LABEL_EVERY * round_s
        self._active_at = 0.0  # a reservation passed here
        self._avoid: dict[ProcessId, float] = {}
        self._stuck_since: dict[ProcessId, float] = {}
        self._orphans_since: dict[ProcessId, float] = {}
        self._traced: dict[ProcessId, tuple[int, list[ProcessId]]] = {}
        self._call_at: float | None = None
        self._turn = ExchangeTurn(0)
        self._has_turn = False
        self._given: tuple[ExchangeTurn, float] | None = None
        self._refresh = LABEL_REFRESH

    def received(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Handle a message that the base class does not."""
        match message:
            case Label():
                self.labels.received(sender, message)
            case ReserveUnits():
                return self._reserve(sender, message, now)
            case UnitsReserved():
                self._granted(sender, message, now)
            case Drop():
                self.dropped(sender, message, now)
            case ReleaseUnits():
                self.released(sender, message, now)
                # Who released them has waited already.
                self._orphans_since.setdefault(message.source, now - 0.75 * HOLD * self.round_s)
            case LockRequest():
                return self._asked(message, now)
            case Locked():
                return self.solver.offered(sender, message)
            case SideLocked():
                return self.solver.side_offered(sender, message)
            case LockDenied():
                self.solver.busy(sender, message)
            case TraceFlow():
                return self._trace(message, now)
            case ExchangeTurn():
                self._turn, self._call_at, self._has_turn = message, now, True
                return [FlowSend(sender, ExchangeTurnTaken(), "taken")]
            case ExchangeTurnTaken():
                self._given = None
            case Inquire():
                return self.solver.inquired(sender, message)
            case ApplyExchange():
                return self._apply(message, now)
        return []

    def tick(self, now: float) -> list[FlowSend]:
        """Some time has passed."""
        sends = self.solver.tick(now)
        if self.solver.solving:
            return sends
        sends = self._finish_own(sends, now)
        sends += self.ask_again(now)
        for source in self.books.sources:
            sends += self._pass_on(source, now)
            sends += self._let_go(source, now)
        sends += self._tell(now)
        sends += self.watch(now)
        sends += self._give_again(now)
        sends += self._call(now)
        return sends

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """A process that this node knows is dead."""
        self.forget(process, now)
        self.labels.forget(process)
        self.solver.gone(process)
        self.view = self.solver.view = self.view.without(process)
        self._stir(now)
        return self._after_standing(now)

    def met(self, view: View, now: float) -> None:
        """Others are there now, too. view: with them."""
        self.join(view)
        self.solver.view = view
        self.labels.cost = view.cost
        self._announced, self._announced_at = None, now - LABEL_CALM * self.round_s  # newcomers have to hear it
        self._stir(now)

    def resize(self, capacity: int, now: float) -> list[FlowSend]:
        """It is to hold another number from now on. What is too much is given back on both sides, as soon as it may."""
        sends = []
        surplus = self.held - capacity
        if surplus > 0 and not self.lock.sides and not self.reservations.under_way:
            for source in self.books.sources:
                units = min(surplus, sum(n for (_, of), n in self.books.inflow.items() if of == source))
                if units > 0 and self.books.loose(source) == 0:
                    sends += self._cut(False, source, units, now) + self._cut(True, source, units, now)
                    surplus -= units
        self.join(replace(self.view, capacity=max(capacity, self.held)))
        self.solver.view = self.view
        return sends

    def costs_changed(self, costs: Mapping[ProcessId, float], now: float, *, calm: bool = False) -> None:
        """Links cost something else now; costs: of all of them.

        calm: that goes on all the time. Now and then one of the neighbourhood looks whether it saves anything.
        """
        self.view = self.solver.view = replace(self.view, cost=costs)
        self.labels.cost = costs
        self.labels.fresh = True
        if not calm:
            self._stir(now)
        elif self._call_at is None:
            self._turn = ExchangeTurn(2 * self._round_length())  # it goes on only if this one saves something
            self._call_at = now + self.random.uniform(0.0, SPREAD_CALM * self._around()) * self.round_s

    @property
    def unfinished(self) -> bool:
        """Whether there is more to compute: tick it again at once."""
        return self.solver.solving

    @property
    def held(self) -> int:
        """What is taken of the capacity."""
        return self.books.held

    def _trace(self, message: TraceFlow, now: float) -> list[FlowSend]:
        """Send it on along a unit that no other trace of that number has taken."""
        number, left = self._traced.get(message.source, (-1, []))
        if number < message.number:
            links = sorted(self.books.outflow.items())
            left = [node for (node, source), n in links if source == message.source for _ in range(n)]
            self._traced[message.source] = message.number, left
        if number > message.number or not left:
            return []
        onward = TraceFlow(message.source, message.number, (*message.path, self.view.me))
        return [self.reliable.wrap(FlowSend(left.pop(0), onward, "one of its units"), now)]

    def _label(self) -> Label:
        """What the stage before may know: with no room, only where there are orphans."""
        costs = self.labels.costs()
        room = max(0, self.books.room)
        orphans = {source: max(0, -self.books.loose(source)) for source in costs}
        reachable = tuple((s, costs[s], orphans[s]) for s in sorted(costs) if room or orphans[s])
        return Label(room, reachable, self.view.capacity, self.labels.width)

    def _tell(self, now: float) -> list[FlowSend]:
        """Broadcast the label if it has changed, not too often."""
        calm = now - self._active_at > LABEL_CALM * self.round_s
        every_s = LABEL_EVERY * self.round_s
        if (
            now - self._announced_at < (LABEL_CALM * self.round_s if calm else every_s)
            or now - self._looked_at < every_s
        ):
            return []
        self._looked_at = now
        label = self._label()
        if worth_telling(self._announced, label):
            self._refresh = LABEL_REFRESH
        elif self._announced is not None and now - self._announced_at >= self._refresh * self.round_s:
            self._refresh = min(LABEL_REFRESH_MAX, 2 * self._refresh)  # it may have been lost
        else:
            return []
        self._announced, self._announced_at = label, now
        return [FlowSend(node, label, "it has changed") for node in self.view.before]

    def _reserve(self, sender: ProcessId, message: ReserveUnits, now: float) -> list[FlowSend]:
        """Take what there is room for; orphans need none."""
        self._active_at = now
        self._stir(now)
        if (given := self.reservations.given(sender, message.number)) is not None:
            return [FlowSend(sender, given, "asked again")]
        if False in self.lock.sides:
            answer = UnitsReserved(message.source, 0, message.number, self._label(), True)
            return [FlowSend(sender, answer, "stands still")]
        orphans = max(0, -self.books.loose(message.source))
        count = min(message.count, orphans + max(0, self.books.room))
        if count > 0:
            self.books.add(False, sender, message.source, count, now)
        answer = UnitsReserved(message.source, count, message.number, self._label())
        if count:
            self.reservations.give(sender, answer)
        return [FlowSend(sender, answer, "room")]

    def _granted(self, sender: ProcessId, message: UnitsReserved, now: float) -> None:
        self.labels.received(sender, message.label)
        if message.busy:
            self._avoid[sender] = now + AVOID * self.round_s
        self.answered(sender, message, now)

    def _pass_on(self, source: ProcessId, now: float) -> list[FlowSend]:
        """Find a next hop for loose units; give them back where there is none for long."""
        loose = self.books.loose(source) - self.reservations.units(source)
        if loose <= 0:
            self._stuck_since.pop(source, None)
            return []
        if True in self.lock.sides:
            return []
        sends = []
        for path in self.labels.paths(source):
            if loose <= 0:
                break
            if self._avoid.get(path.node, 0.0) > now:
                continue
            count = min(loose, path.units)
            self.labels.take(path.node, count)
            sends.append(self.reservations.ask(path.node, source, count, now, f"costs {path.cost:g} to the end"))
            loose -= count
            self._active_at = now
        if sends or self.reservations.units(source):
            self._stuck_since.pop(source, None)
        elif now - self._stuck_since.setdefault(source, now) >= PATIENCE * self.round_s and not self.lock.sides:
            return self._cut(False, source, loose, now)
        return sends

    def _cut(self, outward: bool, source: ProcessId, count: int, now: float) -> list[FlowSend]:
        """Give up units of one side, the dearest links first, and tell the other ends."""
        sends = []
        table = self.books.outflow if outward else self.books.inflow
        links = [(self.view.cost[node], node, n) for (node, s), n in table.items() if s == source]
        for _, node, n in sorted(links, reverse=True):
            units = min(n, count)
            if units > 0:
                self.books.add(outward, node, source, -units, now)
                if outward:
                    sends.append(FlowSend(node, ReleaseUnits(source, units), "nobody has taken them up"))
                else:
                    sends.append(FlowSend(node, Drop(source, units), "nobody can take them on"))
                count -= units
        return sends

    def _let_go(self, source: ProcessId, now: float) -> list[FlowSend]:
        """Orphans that nobody has taken up hold capacity in vain."""
        orphans = -self.books.loose(source)
        if orphans <= 0:
            self._orphans_since.pop(source, None)
            return []
        if self.lock.sides or now - self._orphans_since.setdefault(source, now) < HOLD * self.round_s:
            return []
        return self._cut(True, source, orphans, now)

    def _asked(self, message: LockRequest, now: float) -> list[FlowSend]:
        """Stand still and show the links; have those beyond the edge of the window stand still as well."""
        exchange = message.exchange
        if exchange in self.lock.finished:
            return []
        if self.reservations.under_way or not self.lock.take(exchange, (False, True), now, self.round_s):
            return [FlowSend(exchange.solver, LockDenied(exchange), "reserves or stands still")]
        if self._has_turn:
            self._call_at = now + self.random.uniform(*RETRY) * self.round_s
        else:
            self._call_at = None  # somebody else looks after this part
        sends = [FlowSend(exchange.solver, self._offer(message), "stands still")]
        for wanted, outward in ((message.before, False), (message.after, True)):
            if wanted:
                sends += [
                    FlowSend(node, SideLockRequest(exchange, not outward), "a neighbour of the window")
                    for node in self.books.neighbours(outward)
                ]
        return sends

    def _offer(self, message: LockRequest) -> Locked:
        view = self.view
        costs = tuple((node, view.cost[node]) for node in (*view.before, *view.after))
        return Locked(message.exchange, view.capacity, self.books.counts(False), self.books.counts(True), costs)

    def _apply(self, message: ApplyExchange, now: float) -> list[FlowSend]:
        if self.apply(message, now) and message.stir:
            self._stir(now)
        return self._after_standing(now)

    def _after_standing(self, now: float) -> list[FlowSend]:
        sends = []
        for sender, message in self.take_waiting():
            sends += self.handle(sender, message, now)
        return sends

    def _finish_own(self, sends: list[FlowSend], now: float) -> list[FlowSend]:
        """What an own exchange has come to concerns this node too."""
        others = [send for send in sends if send.to != self.view.me]
        for send in sends:
            if send.to == self.view.me:
                others += self._apply(send.message, now)
                others += self._pass_turn(now)
        return others

    def _pass_turn(self, now: float) -> list[FlowSend]:
        """Who goes on after an own exchange: one two stages further, or this node again if too few stood still."""
        if self.solver.crowded:
            self._has_turn = True
            self._call_at = now + self.random.uniform(*RETRY) * self.round_s
            return []
        idle = 0 if self.solver.gained else self._turn.idle + (2 if self.solver.complete else 1)
        if idle > 2 * self._round_length():
            return []
        return self._give(ExchangeTurn(idle), "its turn", now)

    def _give(self, turn: ExchangeTurn, reason: str, now: float) -> list[FlowSend]:
        successor = self.solver.successor()
        self._given = None if successor is None else (turn, now)
        return [] if successor is None else [FlowSend(successor, turn, reason)]

    def _give_again(self, now: float) -> list[FlowSend]:
        """Nobody has taken the turn: it may be lost, or who got it dead."""
        if self._given is None or now - self._given[1] < TURN_WAITED * self.round_s:
            return []
        return self._give(self._given[0], "not taken", now)

    def _round_length(self) -> int:
        """Exchanges that look at every node about once."""
        stage = max(len(self.view.before), len(self.view.beside) + 1, len(self.view.after))
        return self.view.stages * -(-stage // MEMBERS_MAX)

    def _call(self, now: float) -> list[FlowSend]:
        """Call an exchange when it is time, and nothing is going on here."""
        if self._call_at is None or now < self._call_at or self.solver.open is not None:
            return []
        if self.lock.sides or self.reservations.under_way or now - self._active_at < QUIET * self.round_s:
            self._call_at = now + self.random.uniform(*RETRY) * self.round_s
            return []
        self._call_at, self._has_turn = None, False
        exchange = self.solver.name()
        self.lock.take(exchange, (False, True), now, self.round_s)
        return self.solver.start(self._offer(LockRequest(exchange, False, False)), now)

    def _stir(self, now: float) -> None:
        """Something has changed here: one of the neighbourhood, and soon, should look at it."""
        self._turn = ExchangeTurn(0)
        self._call_at = now + (QUIET + self.random.uniform(0.0, SPREAD * self._around())) * self.round_s

    def _around(self) -> int:
        """How many nodes an exchange of this one is about."""
        view = self.view
        return sum(min(MEMBERS_MAX, len(nodes)) for nodes in (view.before, view.beside, view.after))
