"""A relay in GWTF's negotiation: Request Flow, Request Change, Request Redirect (GWTF, V-C).

What the paper leaves open is decided in GWTF's favour; docs/decisions/flow.md lists it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from swarmflow.core.flow.annealing import Annealing
from swarmflow.core.flow.gwtf_flows import Given, Outflow, Outflows
from swarmflow.core.flow.gwtf_messages import (
    ChangeAccepted,
    CostIs,
    Deny,
    Dropped,
    FlowApproved,
    FlowId,
    FlowRejected,
    Flows,
    NewAfter,
    NewBefore,
    Query,
    RedirectAccepted,
    RequestChange,
    RequestFlow,
    RequestRedirect,
    Shown,
    SwapRefused,
)
from swarmflow.core.flow.node_types import INFINITE, FlowSend, Link, View
from swarmflow.core.types import ProcessId

Objective = Literal["minmax", "sum"]
ANSWERS_WAITED = 4.0  # times a message's: then whoever has not answered is not waited for
LOOSE = 4.0  # times a message's: how long an inflow is unpaired without anybody to ask before it is denied


@dataclass(frozen=True, slots=True)
class SwapMove:
    """A change or redirect that this node could ask for, and what it would save."""

    gain: float
    to: ProcessId
    message: RequestChange | RequestRedirect


class GwtfRelay:
    """objective: what Request Change reduces, the larger of the two sending costs or their sum."""

    def __init__(self, view: View, random: Random, objective: Objective = "minmax", round_s: float = 1.0) -> None:
        self.view = view
        self.flows = Outflows(view)
        self.objective = objective
        self.annealing = Annealing(random)
        self.random = random
        self.round_s = round_s
        self._known: dict[tuple[ProcessId, ProcessId], float] = {}  # (node after, data node): its cheapest unpaired
        self._asked: dict[tuple[ProcessId, ProcessId], FlowId] = {}
        self._answers: dict[ProcessId, Flows] | None = None
        self._since = 0.0
        self._pending: RequestChange | RequestRedirect | None = None
        self._loose_since: dict[FlowId, float] = {}

    def tick(self, now: float) -> list[FlowSend]:
        """Ask for flow while there is any to ask for; else for a change or redirect that reduces the objective."""
        sends = self._request_flows() + self._deny(now)
        if sends or self._asked:
            return sends
        waits = self._pending is not None or self._answers is not None
        if waits and now - self._since < ANSWERS_WAITED * self.round_s:
            return self._consider(now)
        self._pending, self._answers, self._since = None, {}, now
        return [FlowSend(node, Query(), "no flow to ask for") for node in self.view.beside]

    def handle(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """A message has come."""
        match message:
            case CostIs():
                self._known[sender, message.source] = message.cost
            case RequestFlow():
                return self.flows.requested(sender, message)
            case FlowApproved():
                return self._approved(sender, message)
            case FlowRejected():
                self._asked.pop((sender, message.source), None)
                self._known[sender, message.source] = message.cost
            case Query():
                return [FlowSend(sender, self._shown(), "asked")]
            case Flows():
                if self._answers is not None:
                    self._answers[sender] = message
                    return self._consider(now)
            case RequestChange():
                return self._change(sender, message)
            case ChangeAccepted():
                return self._changed(sender, message)
            case RequestRedirect():
                return self._redirect(sender, message)
            case RedirectAccepted():
                return self._redirected(message)
            case SwapRefused():
                self._pending = None
            case NewBefore():
                return self.flows.new_before(message)
            case NewAfter():
                return self.flows.new_after(message)
            case Deny():
                return self.flows.denied(message)
            case Dropped():
                return self.flows.dropped(message) + self.flows.broadcast()
        return []

    @property
    def inflow(self) -> dict[Link, int]:
        """What comes in."""
        return self.flows.inflow()

    @property
    def outflow(self) -> dict[Link, int]:
        """What goes out."""
        return self.flows.outflow()

    @property
    def unfinished(self) -> bool:
        """Never: a decision is a few comparisons."""
        return False

    @property
    def held(self) -> int:
        """Outflows, paired or not, each a unit of capacity (GWTF, V-C), and one that is about to come."""
        asked = sum(flow not in self.flows.table for flow in self._asked.values())
        return len(self.flows.table) + asked + isinstance(self._pending, RequestRedirect)

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """What went to it and what came from it is unpaired again."""
        self.view = self.flows.view = self.view.without(process)
        if self._answers is not None:
            self._answers.pop(process, None)
        for key in [key for key in self._known if key[0] == process]:
            self._known.pop(key)
            self._asked.pop(key, None)
        return self.flows.lose(process) + self.flows.broadcast()

    def met(self, view: View) -> list[FlowSend]:
        """Others are there now, too. view: with them."""
        self.view = view
        return self.flows.greet(view)

    def _request_flows(self) -> list[FlowSend]:
        """The cheapest unpaired outflows of the next stage, one of a node at a time: for unpaired inflows to the same
        data node, and as many more as there is room for."""
        room = self.view.capacity - self.held
        loose = [unit for unit in self.flows.loose if unit.flow not in self._asked.values()]
        offers = [(self.view.cost[key[0]] + cost, key) for key, cost in self._known.items() if cost < INFINITE]
        sends: list[FlowSend] = []
        for _, key in sorted(offer for offer in offers if offer[1] not in self._asked):
            unit = next((unit for unit in loose if unit.source == key[1]), None)
            if unit is not None:
                loose.remove(unit)
            elif room > 0:
                room -= 1
            else:
                continue
            self._asked[key] = self.flows.name() if unit is None else unit.flow
            request = RequestFlow(key[1], self._known[key], self._asked[key])
            sends.append(FlowSend(key[0], request, "the cheapest unpaired outflow"))
        return sends

    def _approved(self, sender: ProcessId, message: FlowApproved) -> list[FlowSend]:
        self._asked.pop((sender, message.source), None)
        unit = self.flows.table.setdefault(message.flow, Outflow(message.flow, message.source, INFINITE))
        unit.after, unit.below, unit.cost = sender, message.below, message.cost + self.view.cost[sender]
        unit.turn, unit.moves = message.turn, message.moves
        return self.flows.broadcast()

    def _deny(self, now: float) -> list[FlowSend]:
        """Unpaired inflows for which nobody is to be asked for a while (GWTF, V-D)."""
        offered = {source for (_, source), cost in self._known.items() if cost < INFINITE}
        waiting = [u for u in self.flows.loose if u.source not in offered and u.flow not in self._asked.values()]
        self._loose_since = {unit.flow: self._loose_since.get(unit.flow, now) for unit in waiting}
        sends: list[FlowSend] = []
        for unit in waiting:
            if now - self._loose_since[unit.flow] >= LOOSE * self.round_s:
                assert unit.before is not None
                assert unit.above is not None
                del self.flows.table[unit.flow]
                sends.append(FlowSend(unit.before, Deny(unit.above, unit.flow, self.view.me), "nobody is to be asked"))
        return sends

    def _shown(self) -> Flows:
        cost = self.view.cost
        pending = None if self._pending is None else _subject(self._pending)
        shown = tuple(
            Shown(
                unit.flow,
                unit.source,
                unit.before,
                unit.after,
                INFINITE if unit.before is None else cost.get(unit.before, INFINITE),
                cost[unit.after],
            )
            for unit in self.flows.table.values()
            if unit.after is not None and unit.flow != pending
        )
        return Flows(shown, tuple((node, cost[node]) for node in self.view.after))

    def _consider(self, now: float) -> list[FlowSend]:
        """Once all have answered: the best move, or if none saves anything, one that annealing wants."""
        answers = self._answers
        if answers is None or len(answers) < len(self.view.beside):
            return []
        self._answers = None
        moves = [*self._changes(answers), *self._redirects(answers)]
        if not moves:
            return []
        best = max(moves, key=lambda move: move.gain)
        if best.gain <= 0:
            best = moves[int(self.random.random() * len(moves))]
            if not self.annealing.wants(best.gain):
                return []
        self._pending, self._since = best.message, now
        return [FlowSend(best.to, best.message, f"saves {best.gain:g}")]

    def _worth(self, now: tuple[float, float], then: tuple[float, float]) -> float:
        return max(now) - max(then) if self.objective == "minmax" else sum(now) - sum(then)

    def _changes(self, answers: dict[ProcessId, Flows]) -> list[SwapMove]:
        moves = []
        cost = self.view.cost
        mine = [unit for unit in self.flows.table.values() if unit.after is not None]
        for node, answer in answers.items():
            costs = dict(answer.costs)
            for shown in answer.shown:
                for unit in mine:
                    assert unit.after is not None
                    assert unit.below is not None
                    if unit.source != shown.source or unit.after == shown.after:
                        continue
                    pair = cost[unit.after], cost.get(shown.after, INFINITE)
                    gain = self._worth((pair[0], shown.cost_after), (pair[1], costs.get(unit.after, INFINITE)))
                    request = RequestChange(
                        unit.flow,
                        unit.after,
                        unit.below,
                        unit.turn,
                        unit.moves,
                        shown.flow,
                        shown.after,
                        pair,
                        gain <= 0,
                    )
                    moves.append(SwapMove(gain, node, request))
        return moves

    def _redirects(self, answers: dict[ProcessId, Flows]) -> list[SwapMove]:
        """For both objectives the two links together, as in the paper's example (11 to 9)."""
        if self.held >= self.view.capacity:
            return []
        moves = []
        for node, answer in answers.items():
            for shown in answer.shown:
                if shown.before is None:
                    continue
                cost = self.view.cost.get(shown.before, INFINITE) + self.view.cost.get(shown.after, INFINITE)
                gain = shown.cost_before + shown.cost_after - cost
                request = RequestRedirect(shown.flow, shown.before, shown.after, cost, gain <= 0)
                moves.append(SwapMove(gain, node, request))
        return moves

    def _change(self, sender: ProcessId, message: RequestChange) -> list[FlowSend]:
        """Agree if the outflow is still there and it saves something here as well."""
        unit = self.flows.table.get(message.theirs)
        refused = [FlowSend(sender, SwapRefused(message.mine), "not any more")]
        if unit is None or unit.after != message.theirs_after:
            return refused
        if self._busy(unit.flow) and not self._yields(sender, message):
            return refused
        assert unit.below is not None
        old, new = self.view.cost[unit.after], self.view.cost.get(message.mine_after, INFINITE)
        gain = self._worth((message.costs[0], old), (message.costs[1], new))
        if gain <= 0 and not message.anneal:
            return refused
        accepted = ChangeAccepted(message.mine, message.theirs, unit.after, unit.below, unit.turn, unit.moves)
        self.flows.swapped[unit.below] = Given(sender, message.mine, unit.flow, unit.after, unit.below)
        self.flows.swapped.pop(message.mine_below, None)
        unit.after, unit.below, unit.cost = message.mine_after, message.mine_below, unit.cost - old + new
        unit.turn, unit.moves = message.turn + 1, message.moves
        self.annealing.changed()
        moved = NewBefore(unit.below, self.view.me, unit.flow, unit.turn)
        sends = [FlowSend(sender, accepted, f"saves {gain:g}"), FlowSend(unit.after, moved, "changed places")]
        return sends + self.flows.broadcast()

    def _changed(self, sender: ProcessId, message: ChangeAccepted) -> list[FlowSend]:
        pending, self._pending = self._pending, None
        unit = self.flows.table.get(message.mine)
        if pending is None or unit is None or unit.after is None or unit.below is None:
            return []
        sends = []
        if isinstance(pending, RequestChange) and unit.after != pending.mine_after:
            # It was redirected while the request was on its way.
            newer = NewAfter(message.theirs, unit.after, unit.below, unit.moves)
            sends.append(FlowSend(sender, newer, "redirected meanwhile"))
        self.flows.swapped[unit.below] = Given(sender, message.theirs, unit.flow, unit.after, unit.below)
        self.flows.swapped.pop(message.below, None)
        unit.cost += self.view.cost[message.after] - self.view.cost[unit.after]
        unit.after, unit.below = message.after, message.below
        unit.turn, unit.moves = message.turn + 1, message.moves
        self.annealing.changed()
        sends.append(FlowSend(unit.after, NewBefore(unit.below, self.view.me, unit.flow, unit.turn), "changed places"))
        return sends + self.flows.broadcast()

    def _redirect(self, sender: ProcessId, message: RequestRedirect) -> list[FlowSend]:
        """Agree if the flow is still the same and costs less through the other one."""
        unit = self.flows.table.get(message.flow)
        refused = [FlowSend(sender, SwapRefused(message.flow), "not any more")]
        if unit is None or (unit.before, unit.after) != (message.before, message.after) or self._busy(unit.flow):
            return refused
        if unit.before is None or unit.after is None or unit.above is None or unit.below is None:
            return refused
        cost = self.view.cost
        gain = cost.get(unit.before, INFINITE) + cost[unit.after] - message.cost
        if gain <= 0 and not message.anneal:
            return refused
        del self.flows.table[unit.flow]
        self.flows.moved[unit.flow] = Given(
            sender, unit.flow, unit.flow, unit.after, unit.below, unit.before, unit.above
        )
        self.annealing.changed()
        below_cost = unit.cost - cost[unit.after]
        accepted = RedirectAccepted(
            unit.flow,
            unit.source,
            unit.before,
            unit.after,
            unit.above,
            unit.below,
            below_cost,
            unit.turn,
            unit.moves,
            unit.own_turn,
            unit.own_moves,
        )
        return [FlowSend(sender, accepted, f"saves {gain:g}")]

    def _redirected(self, message: RedirectAccepted) -> list[FlowSend]:
        """It is mine: both neighbours are told."""
        self._pending = None
        self.flows.moved.pop(message.flow, None)
        cost = message.cost + self.view.cost[message.after]
        unit = self.flows.table[message.flow] = Outflow(
            message.flow,
            message.source,
            cost,
            message.after,
            message.below,
            message.before,
            message.above,
            message.own_turn,
            message.own_moves + 1,
            message.turn + 1,
            message.moves,
        )
        self.annealing.changed()
        return [
            FlowSend(message.before, NewAfter(message.above, self.view.me, message.flow, unit.own_moves), "redirected"),
            FlowSend(message.after, NewBefore(message.below, self.view.me, message.flow, unit.turn), "redirected"),
        ]

    def _yields(self, sender: ProcessId, message: RequestChange) -> bool:
        """Both have asked for the same change: the request of the smaller id stands, the other one is dropped."""
        own = self._pending
        if not isinstance(own, RequestChange) or (own.mine, own.theirs) != (message.theirs, message.mine):
            return False
        if sender < self.view.me:
            self._pending = None
            return True
        return False

    def _busy(self, flow: FlowId) -> bool:
        return self._pending is not None and _subject(self._pending) == flow


def _subject(request: RequestChange | RequestRedirect) -> FlowId:
    return request.mine if isinstance(request, RequestChange) else request.flow
