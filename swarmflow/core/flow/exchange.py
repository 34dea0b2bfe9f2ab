"""The regional exchange: a node has its own and the neighbouring stages stand still, and solves their part anew."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from random import Random

from swarmflow.core.flow.messages import (
    ApplyExchange,
    Exchange,
    Inquire,
    LockDenied,
    Locked,
    LockRequest,
    SideLocked,
    SideLockRequest,
)
from swarmflow.core.flow.node_types import FlowSend, Link, View
from swarmflow.core.flow.window import LinkChange, Window
from swarmflow.core.types import ProcessId

REACH = 1  # stages on either side of the solver's
MEMBERS_MAX = 128  # of a stage
NEAR = 4  # tenths of them that are chosen for their cost
ANSWERS_WAITED = 8.0  # times a message's
REPEATED_AFTER = 3.5  # without a loss all have answered by then
REPEATED_EVERY = 2.5
KEPT = 8  # exchanges whose outcome is remembered for those who ask


@dataclass(slots=True)
class OpenExchange:
    """An exchange that this node solves. asked: members, with their stage.

    sides: neighbours beyond, by direction, and what they have on that side; None: they do not stand still yet.
    """

    exchange: Exchange
    since: float
    asked: dict[ProcessId, int]
    offers: dict[ProcessId, Locked] = field(default_factory=dict)
    busy: dict[ProcessId, None] = field(default_factory=dict)
    sides: dict[tuple[ProcessId, bool], dict[Link, int] | None] = field(default_factory=dict)
    window: Window | None = None
    work: Generator[None, None, dict[ProcessId, LinkChange]] | None = None
    repeat_at: float = 0.0


class Solver:
    """The part of a relay that calls exchanges and solves them. worth: the share of its costs that one has to save."""

    def __init__(self, view: View, random: Random, round_s: float, worth: float = 0.0) -> None:
        self.worth = worth
        self.view = view
        self.random = random
        self.round_s = round_s
        self.open: OpenExchange | None = None
        self.made = 0
        self.gained = False  # the last exchange saved enough
        self.crowded = False  # in the last exchange most could not take part
        self.complete = False  # in the last exchange everybody could
        self._last: OpenExchange | None = None
        self._done: dict[Exchange, dict[ProcessId, ApplyExchange]] = {}

    @property
    def solving(self) -> bool:
        """Whether there is more to compute."""
        return self.open is not None and self.open.work is not None

    def start(self, offer: Locked, now: float) -> list[FlowSend]:
        """Ask those of the own and the neighbouring stages. offer: the own one."""
        view = self.view
        self.open = OpenExchange(offer.exchange, now, {view.me: view.stage})
        self.open.offers[view.me] = offer
        self.open.repeat_at = now + REPEATED_AFTER * self.round_s
        sends = self._ask(view.stage, view.beside, MEMBERS_MAX - 1)
        if view.stage > 0:
            sends += self._ask(view.stage - 1, view.before, MEMBERS_MAX)
        if view.stage < view.stages - 1:
            sends += self._ask(view.stage + 1, view.after, MEMBERS_MAX)
        self._expect(view.me, offer)
        for node, outward in self.open.sides:
            sends.append(FlowSend(node, SideLockRequest(offer.exchange, outward), "a neighbour of the window"))
        return sends

    @property
    def lowest(self) -> int:
        """The first stage of a window around the own stage."""
        return max(0, self.view.stage - REACH)

    @property
    def highest(self) -> int:
        """The last one."""
        return min(self.view.stages - 1, self.view.stage + REACH)

    def _ask(self, stage: int, nodes: Iterable[ProcessId], most: int) -> list[FlowSend]:
        """Ask some nodes of a stage to take part."""
        assert self.open is not None
        all_nodes = sorted(nodes)
        chosen = all_nodes
        if len(all_nodes) > most:
            # Those to whom the way is short may help most; others come in by chance.
            cost = self.view.cost
            near = sorted((node for node in all_nodes if node in cost), key=cost.__getitem__)[: most * NEAR // 10]
            taken = set(near)
            rest = [node for node in all_nodes if node not in taken]
            chosen = near + self.random.sample(rest, most - len(near))
        question = LockRequest(self.open.exchange, stage == self.lowest, stage == self.highest)
        self.open.asked.update(dict.fromkeys(chosen, stage))
        return [FlowSend(node, question, "to solve this part anew") for node in chosen]

    def name(self) -> Exchange:
        """Of the next exchange."""
        self.made += 1
        return Exchange(self.view.me, self.made)

    def offered(self, sender: ProcessId, message: Locked) -> list[FlowSend]:
        """A member stands still."""
        if not self._current(message.exchange):
            return self.inquired(sender, Inquire(message.exchange))
        assert self.open is not None
        if sender in self.open.asked:
            self.open.offers[sender] = message
            self._expect(sender, message)
        return []

    def side_offered(self, sender: ProcessId, message: SideLocked) -> list[FlowSend]:
        """A neighbour of the window stands still on that side."""
        if not self._current(message.exchange):
            return self.inquired(sender, Inquire(message.exchange))
        assert self.open is not None
        self.open.sides[sender, message.outward] = {(node, source): n for node, source, n in message.links}
        return []

    def busy(self, sender: ProcessId, message: LockDenied) -> None:
        """Somebody cannot take part: its units stay as they are."""
        if not self._current(message.exchange):
            return
        assert self.open is not None
        if message.outward is None:
            self.open.busy[sender] = None
        else:
            self.open.sides.setdefault((sender, message.outward), None)
            self.open.busy[sender] = None

    def inquired(self, sender: ProcessId, message: Inquire) -> list[FlowSend]:
        """What has come of an exchange; of one that was forgotten: nothing."""
        if self.open is not None and self.open.exchange == message.exchange:
            return []
        outcome = self._done.get(message.exchange, {}).get(sender, ApplyExchange(message.exchange))
        return [FlowSend(sender, outcome, "asked again")]

    def gone(self, process: ProcessId) -> None:
        """A participant is dead; nobody waits for it, and nothing is changed of it."""
        if self.open is None:
            return
        self.open.asked.pop(process, None)
        self.open.offers.pop(process, None)
        for outward in (False, True):
            self.open.sides.pop((process, outward), None)

    def tick(self, now: float) -> list[FlowSend]:
        """Solve once all have answered, or after a while; a slice at a time."""
        current = self.open
        if current is None:
            return []
        if current.work is None:
            if not self._complete(current) and now - current.since < ANSWERS_WAITED * self.round_s:
                return self._repeat(current, now)
            current.window = self._window(current)
            current.work = current.window.solve(self.random)
        try:
            next(current.work)
        except StopIteration as stop:
            return self._finish(current, stop.value)
        return []

    def _repeat(self, current: OpenExchange, now: float) -> list[FlowSend]:
        """Ask those again now and then who have not answered: a message may be lost."""
        if now < current.repeat_at:
            return []
        current.repeat_at = now + REPEATED_EVERY * self.round_s
        sends = []
        for node, stage in current.asked.items():
            if node not in current.offers and node not in current.busy:
                question = LockRequest(current.exchange, stage == self.lowest, stage == self.highest)
                sends.append(FlowSend(node, question, "no answer yet"))
        for (node, outward), links in current.sides.items():
            if links is None and node not in current.busy:
                sends.append(FlowSend(node, SideLockRequest(current.exchange, outward), "no answer yet"))
        return sends

    def _window(self, current: OpenExchange) -> Window:
        lowest, highest = min(current.asked.values()), max(current.asked.values())
        offers: list[dict[ProcessId, Locked]] = [{} for _ in range(1 + highest - lowest)]
        for node, offer in current.offers.items():
            offers[current.asked[node] - lowest][node] = offer
        shown = [(key, links) for key, links in current.sides.items() if links is not None]
        before, after = ({node: links for (node, out), links in shown if out == outward} for outward in (True, False))
        return Window(offers, before, after)

    def _complete(self, current: OpenExchange) -> bool:
        waited = [node for node in current.asked if node not in current.offers and node not in current.busy]
        sides = current.sides.items()
        return not waited and all(links is not None or node in current.busy for (node, _), links in sides)

    def _expect(self, sender: ProcessId, offer: Locked) -> None:
        """Whom a member at the edge of the window has passed the question on to."""
        assert self.open is not None
        stage = self.open.asked.get(sender)
        if stage == self.lowest:
            for node, _, _ in offer.inflow:
                self.open.sides.setdefault((node, True), None)
        if stage == self.highest:
            for node, _, _ in offer.outflow:
                self.open.sides.setdefault((node, False), None)

    def _finish(self, current: OpenExchange, changes: dict[ProcessId, LinkChange]) -> list[FlowSend]:
        """Tell all who stand still, the own node too."""
        self.open, self._last = None, current
        self.gained = bool(changes) and current.window is not None and current.window.saves(self.worth)
        self.complete = len(current.offers) == len(current.asked) and None not in current.sides.values()
        self.crowded = 2 * len(current.offers) < len(current.asked)
        participants = [*current.offers, *(node for (node, _), links in current.sides.items() if links is not None)]
        outcome = {}
        for node in dict.fromkeys(participants):
            change = changes.get(node, LinkChange())
            outcome[node] = ApplyExchange(
                current.exchange,
                tuple((other, source, n) for (other, source), n in change.inflow.items()),
                tuple((other, source, n) for (other, source), n in change.outflow.items()),
            )
        self._done[current.exchange] = outcome
        while len(self._done) > KEPT:
            del self._done[next(iter(self._done))]
        reason = "saves something" if changes else "nothing to save"
        return [FlowSend(node, message, reason) for node, message in outcome.items()]

    def successor(self) -> ProcessId | None:
        """Who calls the next exchange: two stages further, or so; from the end on a data node, since it is a ring.

        None: there is nobody after this node.
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

    def _current(self, exchange: Exchange) -> bool:
        return self.open is not None and self.open.exchange == exchange and self.open.work is None
