"""The regional exchange: a node locks links of its own and the neighbouring stages, and optimises their flows."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from swarmflow.core.protocol.messages.negotiation import (
    ApplyExchange,
    Exchange,
    Inquire,
    LockDenied,
    Locked,
    LockRequest,
    SideLocked,
    SideLockRequest,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import FlowSend, Link, View
from swarmflow.core.routing.flow.window import LinkChange, Window
from swarmflow.core.transitions import Transitions

REACH = 1  # stages of a window on either side of the solver's
MEMBERS_MAX = 128  # members of a window in each stage
SIDES_MAX = 4 * MEMBERS_MAX  # sides of neighbours outside a window that take part: each has rows in its program
NEAR = 4  # tenths of the members that are chosen for their cost, where a stage has more nodes than MEMBERS_MAX
ANSWER_TIMEOUT_ROUNDS = 8.0  # before the window is solved without the nodes that have not answered
FIRST_REPEAT_ROUNDS = 3.5  # before requests are repeated; where nothing is lost, all have answered by then
REPEAT_ROUNDS = 2.5  # between two repetitions
OUTCOMES_KEPT = 8  # exchanges whose outcome is remembered, for nodes that inquire


class ExchangeState(StrEnum):
    """What the solver of an exchange is doing."""

    GATHERING = "gathering"  # members and neighbours are asked to lock their links and to report them
    SOLVING = "solving"  # the window is solved, a slice at each tick; late answers count no more
    SOLVED = "solved"  # the outcome is sent


EXCHANGE_STATES = Transitions(
    "exchange",
    ExchangeState.GATHERING,
    {
        ExchangeState.GATHERING: {ExchangeState.SOLVING: "every node has answered, or was waited for long enough"},
        ExchangeState.SOLVING: {ExchangeState.SOLVED: "the last slice is computed"},
        ExchangeState.SOLVED: {},
    },
)


class Participation(StrEnum):
    """How many of the nodes that were asked took part in an exchange."""

    ALL = "all"  # every member and every neighbour
    SOME = "some"  # at least half of the members
    FEW = "few"  # less than half of the members


@dataclass(slots=True)
class OpenExchange:
    """An exchange that this node solves."""

    exchange: Exchange
    since: float  # when it was called
    asked: dict[ProcessId, int]  # the members that were asked, and their stages
    repeat_at: float  # when requests without an answer are repeated
    state: ExchangeState = field(init=False, default=ExchangeState.GATHERING)
    offers: dict[ProcessId, Locked] = field(init=False, default_factory=dict)  # the links of locked members
    denied: dict[ProcessId, None] = field(init=False, default_factory=dict)  # nodes that denied a lock
    # The links of each neighbour outside the window, on the side that faces it: (neighbour, True) for its outflows,
    # (neighbour, False) for its inflows. None: that side is not locked yet.
    sides: dict[tuple[ProcessId, bool], dict[Link, int] | None] = field(init=False, default_factory=dict)
    window: Window | None = field(init=False, default=None)  # from SOLVING on
    work: Generator[None, None, dict[ProcessId, LinkChange]] | None = field(init=False, default=None)  # from SOLVING on

    @property
    def answered(self) -> bool:
        """Return whether every node that was asked has answered."""
        missing = [node for node in self.asked if node not in self.offers and node not in self.denied]
        return not missing and all(links is not None or node in self.denied for (node, _), links in self.sides.items())

    @property
    def participation(self) -> Participation:
        """Return how many of the nodes that were asked take part."""
        if 2 * len(self.offers) < len(self.asked):
            return Participation.FEW
        everyone = len(self.offers) == len(self.asked) and None not in self.sides.values()
        return Participation.ALL if everyone else Participation.SOME

    def begin_solving(self, random: Random) -> None:
        """Build the window from the answers; later answers are ignored."""
        assert self.state is ExchangeState.GATHERING, f"an exchange that is {self.state} cannot be solved"
        lowest, highest = min(self.asked.values()), max(self.asked.values())
        offers: list[dict[ProcessId, Locked]] = [{} for _ in range(1 + highest - lowest)]
        for node, offer in self.offers.items():
            offers[self.asked[node] - lowest][node] = offer
        locked = [(key, links) for key, links in self.sides.items() if links is not None]
        before, after = ({node: links for (node, out), links in locked if out == outward} for outward in (True, False))
        self.window = Window(offers, before, after)
        self.work = self.window.solve(random)
        self.state = EXCHANGE_STATES.move(self.state, ExchangeState.SOLVING)

    def saves(self, share: float) -> bool:
        """Return whether the solution saves more than this share of what the links cost before it."""
        assert self.state is ExchangeState.SOLVED, f"an exchange that is {self.state} has no solution"
        return self.window is not None and self.window.saves(share)


class Solver:
    """The part of a relay that solves exchanges."""

    def __init__(self, view: View, random: Random, round_s: float, worth: float = 0.0, numbered: int = 0) -> None:
        self.worth = worth  # the share of a window's cost that an exchange has to save to count as a gain
        self.view = view
        self.random = random
        self.round_s = round_s
        self.open: OpenExchange | None = None
        self.made = numbered  # number of the latest own exchange
        self.gained = False  # whether the last exchange saved enough
        self.participation = Participation.SOME  # in the last exchange
        self._weighed_s = (0.0, 0.0)  # link costs of the windows solved since `weighed`: before, and at least
        self._last: OpenExchange | None = None  # the latest own exchange that is solved
        self._outcomes: dict[Exchange, dict[ProcessId, ApplyExchange]] = {}  # by exchange and participant

    @property
    def solving(self) -> bool:
        """Return whether a computation is unfinished."""
        return self.open is not None and self.open.state is ExchangeState.SOLVING

    def start(self, offer: Locked, now: float) -> list[FlowSend]:
        """Ask nodes of the own and the neighbouring stages to lock their links. offer: the own links."""
        view = self.view
        self.open = OpenExchange(offer.exchange, now, {view.me: view.stage}, now + FIRST_REPEAT_ROUNDS * self.round_s)
        self.open.offers[view.me] = offer
        sends = self._request_locks(view.stage, view.beside, MEMBERS_MAX - 1)
        if view.stage > 0:
            sends += self._request_locks(view.stage - 1, view.before, MEMBERS_MAX)
        if view.stage < view.stages - 1:
            sends += self._request_locks(view.stage + 1, view.after, MEMBERS_MAX)
        self._expect_sides(view.me, offer)
        for node, outward in self.open.sides:
            sends.append(FlowSend(node, SideLockRequest(offer.exchange, outward), "a neighbour of the window"))
        return sends

    @property
    def lowest(self) -> int:
        """Return the first stage of a window around the own stage."""
        return max(0, self.view.stage - REACH)

    @property
    def highest(self) -> int:
        """Return the last stage of a window around the own stage."""
        return min(self.view.stages - 1, self.view.stage + REACH)

    def _request_locks(self, stage: int, nodes: Iterable[ProcessId], most: int) -> list[FlowSend]:
        """Return requests to nodes of a stage to lock their links, at most `most` of them."""
        assert self.open is not None
        all_nodes = sorted(nodes)
        chosen = all_nodes
        if len(all_nodes) > most:
            # Nodes with cheap links may save most; a random choice gives every other node its chance.
            cost = self.view.cost
            near = sorted((node for node in all_nodes if node in cost), key=cost.__getitem__)[: most * NEAR // 10]
            taken = set(near)
            rest = [node for node in all_nodes if node not in taken]
            chosen = near + self.random.sample(rest, most - len(near))
        request = LockRequest(self.open.exchange, stage == self.lowest, stage == self.highest)
        self.open.asked.update(dict.fromkeys(chosen, stage))
        return [FlowSend(node, request, "to optimise this part") for node in chosen]

    def next_exchange(self) -> Exchange:
        """Return the name of a new own exchange."""
        self.made += 1
        return Exchange(self.view.me, self.made)

    def member_locked(self, sender: ProcessId, message: Locked) -> list[FlowSend]:
        """Store the links of a member that has locked them."""
        if not self._is_gathering(message.exchange):
            return self.inquired(sender, Inquire(message.exchange))
        assert self.open is not None
        if sender in self.open.asked and self._is_placed(sender, message):
            self.open.offers[sender] = message
            self._expect_sides(sender, message)
        return []

    def _is_placed(self, sender: ProcessId, offer: Locked) -> bool:
        """Return whether the links of a member lead to the next stage: a window with others may have no end."""
        assert self.open is not None
        asked = self.open.asked
        return all(
            asked.get(node, stage) == stage
            for stage, links in ((asked[sender] - 1, offer.inflow), (asked[sender] + 1, offer.outflow))
            for node, _, _ in links
        )

    def side_locked(self, sender: ProcessId, message: SideLocked) -> list[FlowSend]:
        """Store the links of a neighbour of the window that has locked one side."""
        if not self._is_gathering(message.exchange):
            return self.inquired(sender, Inquire(message.exchange))
        assert self.open is not None
        if self._expect_side(sender, message.outward):
            members = self.open.asked
            links = {(node, source): n for node, source, n in message.links if node in members}
            self.open.sides[sender, message.outward] = links
        return []

    def denied(self, sender: ProcessId, message: LockDenied) -> None:
        """Note a node that cannot take part: its units stay as they are."""
        if not self._is_gathering(message.exchange):
            return
        assert self.open is not None
        if sender in self.open.asked if message.outward is None else self._expect_side(sender, message.outward):
            self.open.denied[sender] = None

    def inquired(self, sender: ProcessId, message: Inquire) -> list[FlowSend]:
        """Answer a node that asks for the outcome of an exchange; a forgotten exchange has an empty outcome."""
        if self.open is not None and self.open.exchange == message.exchange:
            return []
        outcome = self._outcomes.get(message.exchange, {}).get(sender, ApplyExchange(message.exchange))
        return [FlowSend(sender, outcome, "asked again")]

    def gone(self, process: ProcessId) -> None:
        """Remove a participant that is dead from the open exchange."""
        if self.open is None:
            return
        self.open.asked.pop(process, None)
        self.open.offers.pop(process, None)
        for outward in (False, True):
            self.open.sides.pop((process, outward), None)

    def tick(self, now: float) -> list[FlowSend]:
        """Solve the window, a slice at each call, once all have answered or were waited for long enough."""
        current = self.open
        if current is None:
            return []
        if current.state is ExchangeState.GATHERING:
            if not current.answered and now - current.since < ANSWER_TIMEOUT_ROUNDS * self.round_s:
                return self._repeat(current, now)
            current.begin_solving(self.random)
        assert current.work is not None, f"an exchange that is {current.state} has no work to continue"
        try:
            next(current.work)
        except StopIteration as stop:
            return self._finish(current, stop.value)
        return []

    def _repeat(self, current: OpenExchange, now: float) -> list[FlowSend]:
        """Repeat the requests without an answer, when it is time: a message may be lost."""
        if now < current.repeat_at:
            return []
        current.repeat_at = now + REPEAT_ROUNDS * self.round_s
        sends = []
        for node, stage in current.asked.items():
            if node not in current.offers and node not in current.denied:
                request = LockRequest(current.exchange, stage == self.lowest, stage == self.highest)
                sends.append(FlowSend(node, request, "no answer yet"))
        for (node, outward), links in current.sides.items():
            if links is None and node not in current.denied:
                sends.append(FlowSend(node, SideLockRequest(current.exchange, outward), "no answer yet"))
        return sends

    def _expect_sides(self, sender: ProcessId, offer: Locked) -> None:
        """Expect answers of the neighbours to which a member at the edge of the window has sent side lock requests."""
        assert self.open is not None
        stage = self.open.asked.get(sender)
        if stage == self.lowest:
            for node, _, _ in offer.inflow:
                self._expect_side(node, True)
        if stage == self.highest:
            for node, _, _ in offer.outflow:
                self._expect_side(node, False)

    def _expect_side(self, node: ProcessId, outward: bool) -> bool:
        """Expect the answer of a neighbour outside the window; return False for a member, or if there are too many."""
        assert self.open is not None
        sides = self.open.sides
        if node in self.open.asked or ((node, outward) not in sides and len(sides) >= SIDES_MAX):
            return False
        sides.setdefault((node, outward), None)
        return True

    def _finish(self, current: OpenExchange, changes: dict[ProcessId, LinkChange]) -> list[FlowSend]:
        """Send the outcome to all locked nodes, the own one included."""
        current.state = EXCHANGE_STATES.move(current.state, ExchangeState.SOLVED)
        self.open, self._last = None, current
        self.gained = bool(changes) and current.saves(self.worth)
        self.participation = current.participation
        if current.window is not None:
            before_s, least_s = self._weighed_s
            cost_s = current.window.former_cost
            self._weighed_s = (before_s + cost_s, least_s + cost_s - current.window.saved)
        participants = [*current.offers, *(node for (node, _), links in current.sides.items() if links is not None)]
        outcome = {}
        for node in dict.fromkeys(participants):
            change = changes.get(node, LinkChange())
            outcome[node] = ApplyExchange(
                current.exchange,
                tuple((other, source, n) for (other, source), n in change.inflow.items()),
                tuple((other, source, n) for (other, source), n in change.outflow.items()),
            )
        self._outcomes[current.exchange] = outcome
        while len(self._outcomes) > OUTCOMES_KEPT:
            del self._outcomes[next(iter(self._outcomes))]
        reason = "saves something" if changes else "nothing to save"
        return [FlowSend(node, message, reason) for node, message in outcome.items()]

    def weighed(self) -> list[tuple[str, float]]:
        """Return the link costs of the windows solved since the last call, in seconds: before, and the least possible.

        A window whose program has no integral optimum counts with the solution that was found.
        """
        (before_s, least_s), self._weighed_s = self._weighed_s, (0.0, 0.0)
        return [("before", before_s), ("least", least_s)] if before_s else []

    def successor(self) -> ProcessId | None:
        """Return the node that calls the next exchange; None: no node follows this one.

        It is a node about two stages further along the ring; after the last stage, a data node.
        """
        view, last = self.view, self._last
        assert last is not None
        wanted = view.stage + 2 - int(self.random.random() < 0.5)
        nodes = [node for node, stage in last.asked.items() if stage == wanted and node in last.offers]
        if not nodes:
            nodes = sorted({n for (n, outward), links in last.sides.items() if links is not None and not outward})
        if not nodes:
            nodes = list(view.after)
        return nodes[int(self.random.random() * len(nodes))] if nodes else None

    def _is_gathering(self, exchange: Exchange) -> bool:
        """Return whether this exchange is open and still takes answers."""
        current = self.open
        return current is not None and current.exchange == exchange and current.state is ExchangeState.GATHERING
