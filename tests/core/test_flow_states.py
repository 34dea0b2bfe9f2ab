"""The states of locks, of exchanges and of their calls: legal histories, and moves that the tables lack."""

from __future__ import annotations

from random import Random

import pytest

from swarmflow.core.protocol.messages.negotiation import (
    ApplyExchange,
    Exchange,
    ExchangeTurn,
    LockDenied,
    Locked,
    SideLocked,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.exchange import EXCHANGE_STATES, SIDES_MAX, ExchangeState, Participation, Solver
from swarmflow.core.routing.flow.exchange_calls import (
    ACK_TIMEOUT_ROUNDS,
    EXCHANGE_CALL_STATES,
    ExchangeCalls,
    ExchangeCallState,
)
from swarmflow.core.routing.flow.exchange_lock import (
    EXCHANGE_LOCK_STATES,
    GIVE_UP_ROUNDS,
    INQUIRE_AFTER_ROUNDS,
    INQUIRE_INTERVAL_ROUNDS,
    ExchangeLock,
    ExchangeLockState,
)
from swarmflow.core.routing.flow.node_types import View
from swarmflow.core.transitions import IllegalTransition

A, B, C, D = (ProcessId(name, 0) for name in "abcd")
STRANGER = ProcessId("stranger", 0)
VIEW = View(A, 1, 3, 2, before=(B,), beside=(C,), after=(D,), cost={B: 1.0, D: 1.0})


def offer(exchange: Exchange, *nodes: ProcessId) -> Locked:
    return Locked(exchange, 2, (), (), tuple((node, 1.0) for node in nodes))


def state_of(machine: ExchangeLock | ExchangeCalls) -> ExchangeLockState | ExchangeCallState:
    return machine.state


def opened() -> tuple[Solver, Exchange]:
    solver = Solver(VIEW, Random(0), 1.0)
    exchange = solver.next_exchange()
    solver.start(offer(exchange, B, D), 0.0)
    return solver, exchange


def solved(solver: Solver, now: float) -> list[ApplyExchange]:
    while not (sends := solver.tick(now)):
        assert solver.solving
    assert solver.open is None
    return [send.message for send in sends]


def test_a_lock_is_held_until_the_last_exchange_releases_its_side() -> None:
    lock, first, second = ExchangeLock(1.0), Exchange(A, 1), Exchange(B, 1)
    assert lock.acquire(first, (True,), 0.0)
    assert lock.acquire(second, (False,), 1.0)
    assert not lock.overdue(INQUIRE_AFTER_ROUNDS)
    assert lock.overdue(1.0 + INQUIRE_AFTER_ROUNDS)
    assert lock.inquire(1.0 + INQUIRE_AFTER_ROUNDS) == [first, second]
    assert state_of(lock) is ExchangeLockState.INQUIRING
    assert not lock.overdue(INQUIRE_AFTER_ROUNDS + INQUIRE_INTERVAL_ROUNDS)
    assert lock.acquire(second, (False,), 20.0)
    assert state_of(lock) is ExchangeLockState.LOCKED
    assert lock.release(first)
    assert lock.holder(outward=True) is None
    assert state_of(lock) is ExchangeLockState.LOCKED
    assert lock.expired(GIVE_UP_ROUNDS) == []
    assert lock.expired(1.0 + GIVE_UP_ROUNDS) == [second], "however often it was requested"
    assert lock.release(second)
    assert not lock.locked
    assert not lock.release(second)


def test_an_unlocked_node_has_nothing_to_inquire() -> None:
    lock = ExchangeLock(1.0)
    with pytest.raises(AssertionError, match="0 sides locked at inquiring"):
        lock.inquire(1.0)
    with pytest.raises(IllegalTransition, match="inquiring cannot follow unlocked"):
        EXCHANGE_LOCK_STATES.move(lock.state, ExchangeLockState.INQUIRING)
    assert state_of(lock) is ExchangeLockState.UNLOCKED


def test_an_exchange_is_gathered_and_solved_once() -> None:
    solver, exchange = opened()
    current = solver.open
    assert current is not None
    assert not solver.solving
    for node, others in ((B, (A, C)), (C, (B, D)), (D, (A, C))):
        assert solver.tick(1.0) == []
        solver.member_locked(node, offer(exchange, *others))
    assert solved(solver, 1.0) == [ApplyExchange(exchange)] * 4
    assert (current.state, solver.participation) == (ExchangeState.SOLVED, Participation.ALL)
    with pytest.raises(AssertionError, match="solved cannot be solved"):
        current.begin_solving(Random(0))
    with pytest.raises(IllegalTransition, match="it is final"):
        EXCHANGE_STATES.move(current.state, ExchangeState.SOLVING)
    assert current.state is ExchangeState.SOLVED


@pytest.mark.parametrize("end", [A, B, C, D])
def test_a_member_whose_links_lead_back_into_the_window_takes_no_part(end: ProcessId) -> None:
    solver, exchange = opened()
    assert solver.open is not None
    solver.member_locked(D, Locked(exchange, 2, ((C, A, 1),), ((end, A, 1),), ((C, 1.0), (end, 1.0))))
    assert list(solver.open.offers) == [A]
    assert solver.open.sides == {}
    solver.member_locked(D, Locked(exchange, 2, ((C, A, 1),), ((STRANGER, A, 1),), ((C, 1.0), (STRANGER, 1.0))))
    assert list(solver.open.offers) == [A, D]
    assert list(solver.open.sides) == [(STRANGER, False)]


def test_a_window_takes_the_links_to_its_members_from_a_limited_number_of_neighbours() -> None:
    solver, exchange = opened()
    assert solver.open is not None
    solver.side_locked(D, SideLocked(exchange, False, ((D, A, 1),)))
    for number in range(SIDES_MAX + 9):
        solver.side_locked(ProcessId("stranger", number), SideLocked(exchange, False, ((D, A, 1), (STRANGER, A, 1))))
        solver.denied(ProcessId("other", number), LockDenied(exchange, True))
    assert len(solver.open.sides) == SIDES_MAX
    assert len(solver.open.denied) <= SIDES_MAX
    assert (D, False) not in solver.open.sides
    assert solver.open.sides[ProcessId("stranger", 0), False] == {(D, A): 1}


@pytest.mark.parametrize(
    ("locked", "participation"), [((), Participation.FEW), ((B,), Participation.SOME), ((B, C), Participation.SOME)]
)
def test_members_that_deny_are_not_waited_for(locked: tuple[ProcessId, ...], participation: Participation) -> None:
    solver, exchange = opened()
    for node in (B, C, D):
        if node in locked:
            solver.member_locked(node, offer(exchange))
        else:
            solver.denied(node, LockDenied(exchange))
    assert len(solved(solver, 1.0)) == 1 + len(locked)
    assert solver.participation is participation


def test_a_scheduled_call_is_replaced_by_another_exchange_and_a_turn_is_not() -> None:
    calls = ExchangeCalls(Solver(VIEW, Random(0), 1.0), Random(0), 1.0)
    assert not calls.due(1e9)
    calls.changed(0.0)
    assert state_of(calls) is ExchangeCallState.SCHEDULED
    calls.preempted(1.0)
    assert state_of(calls) is ExchangeCallState.IDLE
    calls.drifted(2.0)
    calls.turn_arrived(ExchangeTurn(3), 3.0)
    assert calls.due(3.0)
    calls.preempted(3.0)
    calls.changed(3.0)
    assert state_of(calls) is ExchangeCallState.TURN
    assert not calls.due(3.0)
    calls.called()
    assert state_of(calls) is ExchangeCallState.IDLE


def test_no_call_is_begun_or_postponed_where_none_is_scheduled() -> None:
    calls = ExchangeCalls(Solver(VIEW, Random(0), 1.0), Random(0), 1.0)
    with pytest.raises(IllegalTransition, match="idle cannot follow idle"):
        calls.called()
    with pytest.raises(AssertionError, match="no call is scheduled"):
        calls.postpone(1.0)
    assert state_of(calls) is ExchangeCallState.IDLE
    with pytest.raises(IllegalTransition, match="scheduled cannot follow turn"):
        EXCHANGE_CALL_STATES.move(ExchangeCallState.TURN, ExchangeCallState.SCHEDULED)


def test_a_turn_is_passed_until_it_is_acknowledged_and_kept_where_most_members_denied() -> None:
    solver, exchange = opened()
    calls = ExchangeCalls(solver, Random(0), 1.0)
    for node in (B, C, D):
        solver.denied(node, LockDenied(exchange))
    solved(solver, 1.0)
    assert calls.solved(1.0) == []
    assert state_of(calls) is ExchangeCallState.TURN
    calls.called()
    solver, exchange = calls.solver, solver.next_exchange()
    solver.start(offer(exchange), 2.0)
    for node in (B, C, D):
        solver.member_locked(node, offer(exchange))
    solved(solver, 3.0)
    assert [send.message for send in calls.solved(3.0)] == [ExchangeTurn(2)]
    assert calls.repeat(3.0) == []
    assert [send.message for send in calls.repeat(3.0 + ACK_TIMEOUT_ROUNDS)] == [ExchangeTurn(2)]
    calls.turn_taken()
    assert calls.repeat(100.0) == []
