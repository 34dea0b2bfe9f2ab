"""When a relay calls the next exchange, and which node gets the turn after it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from swarmflow.core.protocol.messages.negotiation import ExchangeTurn
from swarmflow.core.routing.flow.exchange import MEMBERS_MAX, Participation, Solver
from swarmflow.core.routing.flow.node_types import INFINITE, FlowSend
from swarmflow.core.transitions import Transitions

ACK_TIMEOUT_ROUNDS = 6.0  # before a turn that is not acknowledged is passed to another node
SPREAD_ROUNDS = 3.0  # of random delay for each node around: the first exchange mostly locks the others before they call
CALM_SPREAD_ROUNDS = 120.0  # the same, where nothing but measured times has changed
QUIET_ROUNDS = 7.0  # after the last reservation here before an exchange may be called
RECALL_ROUNDS = (2.0, 8.0)  # before another call, where one was impossible or most members denied the lock


class ExchangeCallState(StrEnum):
    """Whether a relay is about to call an exchange, and whether the exchange of another node replaces that call."""

    IDLE = "idle"  # no call is scheduled
    SCHEDULED = "scheduled"  # links or costs have changed here; another node's exchange replaces the call
    TURN = "turn"  # another node has passed its turn: the call may be postponed, and is never replaced


EXCHANGE_CALL_STATES = Transitions(
    "exchange call",
    ExchangeCallState.IDLE,
    {
        ExchangeCallState.IDLE: {
            ExchangeCallState.SCHEDULED: "a link or a cost has changed",
            ExchangeCallState.TURN: "the turn arrives, or most members denied the own exchange",
        },
        ExchangeCallState.SCHEDULED: {
            ExchangeCallState.SCHEDULED: "another link or cost has changed",
            ExchangeCallState.TURN: "the turn arrives, or most members denied the own exchange",
            ExchangeCallState.IDLE: "the exchange is called, or another node's exchange locks this one",
        },
        ExchangeCallState.TURN: {
            ExchangeCallState.TURN: "another turn arrives, or a link or a cost has changed",
            ExchangeCallState.IDLE: "the exchange is called",
        },
    },
)


@dataclass(frozen=True, slots=True)
class PassedTurn:
    """A turn that its receiver has not acknowledged yet."""

    turn: ExchangeTurn
    since: float  # when it was sent


class ExchangeCalls:
    """The schedule of a relay's own exchanges.

    After a change the nodes around wait random times; the first one calls an exchange, which replaces the calls of the
    others. The node that has solved it passes the turn on, two stages further along the ring, until the exchanges of a
    whole lap around the ring have saved nothing.
    """

    def __init__(self, solver: Solver, random: Random, round_s: float) -> None:
        self.solver = solver
        self.random = random
        self.round_s = round_s
        self.state = ExchangeCallState.IDLE
        self._at = INFINITE  # when the exchange is called; infinite exactly where the state is IDLE
        self._turn = ExchangeTurn(0)  # the turn that the next own exchange continues
        self._passed: PassedTurn | None = None  # None: its receiver has acknowledged it

    def changed(self, now: float) -> None:
        """Schedule a call soon: links or costs have changed here."""
        self._turn = ExchangeTurn(0)
        at = now + (QUIET_ROUNDS + self.random.uniform(0.0, SPREAD_ROUNDS * self._nodes_around())) * self.round_s
        if self.state is ExchangeCallState.TURN:
            self._schedule(ExchangeCallState.TURN, at)
        else:
            self._schedule(ExchangeCallState.SCHEDULED, at)

    def drifted(self, now: float) -> None:
        """Schedule a call for later, unless there is one: measured times have changed, as they always do."""
        if self.state is ExchangeCallState.IDLE:
            self._turn = ExchangeTurn(2 * self._exchanges_around())  # passed on only if this exchange saves something
            at = now + self.random.uniform(0.0, CALM_SPREAD_ROUNDS * self._nodes_around()) * self.round_s
            self._schedule(ExchangeCallState.SCHEDULED, at)

    def turn_arrived(self, turn: ExchangeTurn, now: float) -> None:
        """Take a turn that another node has passed: the exchange is called at once."""
        self._turn = turn
        self._schedule(ExchangeCallState.TURN, now)

    def turn_taken(self) -> None:
        """Record that the receiver of the passed turn has acknowledged it."""
        self._passed = None

    def preempted(self, now: float) -> None:
        """Give way to another node's exchange that has locked this node."""
        if self.state is ExchangeCallState.TURN:
            self.postpone(now)
        elif self.state is ExchangeCallState.SCHEDULED:
            self._unschedule()

    def due(self, now: float) -> bool:
        """Return whether a scheduled call is due."""
        return self.state is not ExchangeCallState.IDLE and now >= self._at

    def postpone(self, now: float) -> None:
        """Call the exchange a little later: this node is locked, reserves, or is not quiet yet."""
        assert self.state is not ExchangeCallState.IDLE, "no call is scheduled"
        self._at = self._retry_at(now)

    def called(self) -> None:
        """Record that the own exchange begins."""
        self._unschedule()

    def solved(self, now: float) -> list[FlowSend]:
        """Pass the turn on after an own exchange, or call another one soon if most members denied the lock."""
        if self.solver.participation is Participation.FEW:
            self._schedule(ExchangeCallState.TURN, self._retry_at(now))
            return []
        weight = 2 if self.solver.participation is Participation.ALL else 1
        idle = 0 if self.solver.gained else self._turn.idle + weight
        if idle > 2 * self._exchanges_around():
            return []
        return self._pass(ExchangeTurn(idle), "its turn", now)

    def repeat(self, now: float) -> list[FlowSend]:
        """Pass the turn to another node if it is not acknowledged: the message is lost, or its receiver is dead."""
        if self._passed is None or now - self._passed.since < ACK_TIMEOUT_ROUNDS * self.round_s:
            return []
        return self._pass(self._passed.turn, "not taken", now)

    def _pass(self, turn: ExchangeTurn, reason: str, now: float) -> list[FlowSend]:
        successor = self.solver.successor()
        self._passed = None if successor is None else PassedTurn(turn, now)
        return [] if successor is None else [FlowSend(successor, turn, reason)]

    def _retry_at(self, now: float) -> float:
        return now + self.random.uniform(*RECALL_ROUNDS) * self.round_s

    def _exchanges_around(self) -> int:
        """Return the number of exchanges that include every node about once."""
        view = self.solver.view
        stage = max(len(view.before), len(view.beside) + 1, len(view.after))
        return view.stages * -(-stage // MEMBERS_MAX)

    def _nodes_around(self) -> int:
        """Return the number of nodes in the window of an own exchange."""
        view = self.solver.view
        return sum(min(MEMBERS_MAX, len(nodes)) for nodes in (view.before, view.beside, view.after))

    def _schedule(self, to: ExchangeCallState, at: float) -> None:
        assert at < INFINITE, "a scheduled call has a time"
        self.state, self._at = EXCHANGE_CALL_STATES.move(self.state, to), at

    def _unschedule(self) -> None:
        self.state, self._at = EXCHANGE_CALL_STATES.move(self.state, ExchangeCallState.IDLE), INFINITE
