"""The parts of the flow negotiation, one by one."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping
from dataclasses import replace
from random import Random
from typing import TypeVar

import numpy as np
import pytest

from swarmflow.core.protocol.messages.negotiation import (
    Ack,
    ApplyExchange,
    Audit,
    Drop,
    Exchange,
    Label,
    Locked,
    LockRequest,
    OwnFlows,
    Price,
    Reliable,
    ReserveUnits,
    Times,
    UnitsReserved,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.annealing import Annealing
from swarmflow.core.routing.flow.books import Books
from swarmflow.core.routing.flow.costs import FlowCosts
from swarmflow.core.routing.flow.exchange_lock import DEFERRED_MAX, GIVE_UP_ROUNDS, ExchangeLock
from swarmflow.core.routing.flow.labels import WIDE, Labels
from swarmflow.core.routing.flow.node import FORMER_MAX
from swarmflow.core.routing.flow.node_types import COST_MAX_S, INFINITE, FlowSend, View, link_cost_s
from swarmflow.core.routing.flow.owners import Handover, changes, cheapest_owners
from swarmflow.core.routing.flow.plausibility import is_plausible
from swarmflow.core.routing.flow.relay import LABEL_REPEAT_MAX_ROUNDS, FlowRelay
from swarmflow.core.routing.flow.reliable import ACK_TIMEOUT_ROUNDS, ReliableDelivery
from swarmflow.core.routing.flow.reservations import ANSWER_TIMEOUT_ROUNDS, SENDS_MAX, Reservations
from swarmflow.core.routing.flow.simplex import Numbers, PathProgram, Simplex, Terminal
from swarmflow.core.routing.flow.source import FlowSource
from swarmflow.core.routing.flow.whole import ENTERS, LEAVES, FlowArc, hops_of, solve
from swarmflow.core.routing.flow.window import LinkChange, Window

Result = TypeVar("Result")
A, B, C, D = (ProcessId(name, 0) for name in "abcd")


def test_the_cost_of_a_link_is_equation_1() -> None:
    # (2 + 4) / 2 + (0.1 + 0.3) / 2 + 2 * 8 / (3 + 5)
    assert link_cost_s((2.0, 4.0), (0.1, 0.3), (3.0, 5.0), 8.0) == pytest.approx(3.0 + 0.2 + 2.0)
    with pytest.raises(ValueError, match="above 0"):
        link_cost_s((1.0, 1.0), (0.0, 0.0), (0.0, 1.0), 1.0)


def test_annealing_takes_changes_that_save_and_cools_with_every_change() -> None:
    annealing = Annealing(Random(0))
    assert annealing.wants(0.1)
    assert not annealing.wants(0.0)
    worse = sum(annealing.wants(-1.0) for _ in range(4000)) / 4000
    assert worse == pytest.approx(0.555, abs=0.03)  # exp(-1 / 1.7)
    annealing.changed()
    assert annealing.temperature == pytest.approx(1.7 * 0.95)


def cheapest_by_enumeration(problem: PathProgram) -> float:
    """Return the least cost over all paths of all units; the oracle."""
    starts = [t for number, t in enumerate(problem.entries) for _ in range(t.count)]
    ends = [t for t in problem.exits for _ in range(t.count)]
    layers = [range(len(layer)) for layer in problem.capacity]
    best = float("inf")
    routes = list(itertools.product(*layers))
    for order in set(itertools.permutations(range(len(ends)))):
        if any(starts[i].commodity != ends[j].commodity for i, j in enumerate(order)):
            continue
        for chosen in itertools.product(routes, repeat=len(starts)):
            used = [[0] * len(layer) for layer in problem.capacity]
            for route in chosen:
                for layer, node in enumerate(route):
                    used[layer][node] += 1
            if any(u > c for us, cs in zip(used, problem.capacity, strict=True) for u, c in zip(us, cs, strict=True)):
                continue
            total = 0.0
            for i, (route, j) in enumerate(zip(chosen, order, strict=True)):
                total += starts[i].cost[route[0]] + ends[j].cost[route[-1]]
                total += sum(problem.arcs[k][b, a] for k, (a, b) in enumerate(itertools.pairwise(route)))
            best = min(best, total)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_a_window_is_solved_exactly(seed: int) -> None:
    random = Random(seed)

    def costs() -> Numbers:
        return np.array([float(random.randint(1, 20)) for _ in range(2)])

    problem = PathProgram(
        [[2, 1], [1, 2]],
        [np.array([costs(), costs()])],
        [Terminal(0, 0, 1, costs()), Terminal(0, 0, 1, costs()), Terminal(1, 0, 1, costs())],
        [Terminal(0, 1, 1, costs()), Terminal(0, 1, 1, costs()), Terminal(1, 1, 1, costs())],
    )
    assert cost_of(problem, solved(solve(problem, random))) == pytest.approx(cheapest_by_enumeration(problem))


@pytest.mark.parametrize("seed", [28, 90, 98, 314])
def test_a_window_whose_relaxation_is_not_whole_is_solved_in_whole_numbers(seed: int) -> None:
    random = Random(seed)

    def costs() -> Numbers:
        return np.array([float(random.randint(1, 20)) for _ in range(3)])

    problem = PathProgram(
        [[1, 1, 1], [1, 1, 1]],
        [np.array([costs(), costs(), costs()])],
        [Terminal(k, 0, 1, costs()) for k in range(3)],
        [Terminal(k, 1, 1, costs()) for k in range(3)],
    )
    paths = solved(Simplex(problem, Random(seed)).solve())
    assert any(0.1 < units < 0.9 for units in hops_of(problem, paths).values())
    flows = solved(solve(problem, random))
    into = [[sum(n for (at, _, b, _), n in flows.items() if at == k - 1 and b == v) for v in range(3)] for k in (0, 1)]
    assert into == [[1, 1, 1], [1, 1, 1]]
    relaxed = cost_of(problem, hops_of(problem, paths))
    best = cheapest_by_enumeration(problem)
    assert relaxed - 1e-3 <= best <= cost_of(problem, flows) <= 1.2 * best


@pytest.mark.parametrize("known", [0, 1, 3])
def test_a_window_moves_the_units_on_which_both_ends_of_a_link_agree(known: int) -> None:
    """A node sends to an expensive one, which has 3 units of it in its books; the sender has only some of them."""
    dear, cheap, before, after = (ProcessId(name, 0) for name in ("dear", "cheap", "before", "after"))
    exchange = Exchange(dear, 1)
    costs = ((before, 9.0), (after, 1.0))
    offers = {
        dear: Locked(exchange, 3, ((before, A, 3),), ((after, A, 3),), costs),
        cheap: Locked(exchange, 3, (), (), ((before, 1.0), (after, 1.0))),
    }
    window = Window([offers], {before: {(dear, A): known}}, {after: {(dear, A): 3}})
    changes = solved(window.solve(Random(0)))
    moved = {before: LinkChange(outflow={(dear, A): -known, (cheap, A): known})} if known else {}
    assert {node: change for node, change in changes.items() if node == before} == moved
    assert window.saved == pytest.approx(8.0 * known)


def solved(work: Generator[None, None, Result | None]) -> Result:
    """Return the result of a sliced computation."""
    result: list[Result | None] = []

    def run() -> Generator[None, None, None]:
        result.append((yield from work))

    for _ in run():
        pass
    assert result[0] is not None
    return result[0]


def cost_of(problem: PathProgram, flows: Mapping[FlowArc, float]) -> float:
    """Return the total cost of all hops."""
    total = 0.0
    for (layer, a, b, _), units in flows.items():
        if layer == ENTERS:
            total += units * problem.entries[a].cost[b]
        elif layer == LEAVES:
            total += units * problem.exits[b].cost[a]
        else:
            total += units * problem.arcs[layer][b, a]
    return total


@pytest.mark.parametrize("seed", range(20))
def test_paths_are_given_to_the_data_nodes_for_which_they_cost_least(seed: int) -> None:
    random = Random(seed)
    relays = [ProcessId(f"r{i}", 0) for i in range(6)]
    sources = (A, B, C)
    paths: dict[ProcessId, list[tuple[ProcessId, ...]]] = {source: [] for source in sources}
    for _ in range(5):
        paths[random.choice(sources)].append((random.choice(relays), random.choice(relays)))
    owned = {
        source: OwnFlows(
            len(paths[source]) + random.randint(0, 1),
            tuple(paths[source]),
            tuple((relay, float(random.randint(1, 30))) for relay in relays),
        )
        for source in sources
    }
    costs = {source: dict(mine.costs) for source, mine in owned.items()}
    every = [path for source in sources for path in paths[source]]

    def cost(owners: tuple[ProcessId, ...]) -> float:
        return sum(costs[o][p[0]] + costs[o][p[-1]] for o, p in zip(owners, every, strict=True))

    allowed = [
        owners
        for owners in itertools.product(sources, repeat=len(every))
        if all(owners.count(source) <= owned[source].wanted for source in sources)
    ]
    best = min(map(cost, allowed))
    before = cost(tuple(source for source in sources for _ in paths[source]))
    saved = sum(
        costs[h.giver][h.path[0]] + costs[h.giver][h.path[-1]] - costs[h.taker][h.path[0]] - costs[h.taker][h.path[-1]]
        for h in cheapest_owners(owned)
    )
    assert before - saved == pytest.approx(best)


def test_loose_units_and_orphans_hold_capacity_and_changes_that_do_not_fit_are_refused() -> None:
    books = Books(A, 3)
    books.add(False, B, D, 2, 0.0)
    books.add(True, C, D, 1, 0.0)
    assert (books.loose(D), books.held, books.room) == (1, 2, 1)
    assert books.fits(((B, D, 1),), ())
    assert not books.fits(((B, D, 2),), ())
    assert not books.fits((), ((C, D, -2),))
    assert not books.fits((), ((C, D, -1), (C, D, -1)))
    with pytest.raises(ValueError, match="units on a link"):
        books.add(True, C, D, -2, 0.0)


def test_an_outcome_books_no_link_to_a_process_that_has_moved_to_the_other_side() -> None:
    relay = FlowRelay(View(A, 1, 3, 4, before=(B, C), beside=(), after=(), cost={B: 1.0, C: 1.0}), Random(0))
    exchange = Exchange(A, 1)
    assert relay.lock.acquire(exchange, (False, True), 0.0)
    assert relay.apply(ApplyExchange(exchange, ((B, D, 1),), ((C, D, 1),)), 1.0)
    assert (relay.inflow, relay.outflow) == ({(B, D): 1}, {})


def test_a_relay_keeps_nothing_of_the_processes_that_have_left() -> None:
    view = View(A, 0, 3, 9, before=(B,), beside=(), after=(C,), cost={B: 1.0, C: 1.0})
    relay = FlowRelay(view, Random(0))
    for number in range(FORMER_MAX + 9):
        trainer, peer = ProcessId("trainer", number), ProcessId("peer", number)
        relay.met(replace(view, before=(trainer,), after=(peer,), cost={trainer: 1.0, peer: 1.0}), 0.0)
        label = Label(9, ((trainer, 1.0, 0),), 9, 9)
        relay.handle(peer, label, 0.0)
        relay.handle(trainer, ReserveUnits(trainer, 1, number), 0.0)
        relay.tick(0.0)
        relay.handle(peer, UnitsReserved(trainer, 0, number + 1, label, busy=True), 0.0)
        relay.labels.take(peer, 1)
        relay.gone(peer, 0.0)
        relay.gone(trainer, 0.0)
        relay.tick(0.0)
    assert (relay.avoid, relay.labels.taken, relay.books.sources) == ({}, {}, [])
    assert len(relay.former) == FORMER_MAX


def test_an_audit_leaves_the_smaller_number_at_both_ends() -> None:
    sends, receives = Books(A, 9), Books(B, 9)
    sends.add(True, B, D, 3, 0.0)
    receives.add(False, A, D, 1, 0.0)
    question = sends.audit(B, True, False, "").message
    assert isinstance(question, Audit)
    receives.audited(A, question, 1.0)
    answer = receives.audit(A, False, True, "").message
    sends.audited(B, answer, 2.0)
    assert sends.outflow[B, D] == receives.inflow[A, D] == 1


def test_a_side_is_locked_for_one_exchange_at_a_time_and_for_none_that_is_finished() -> None:
    lock = ExchangeLock(1.0)
    first, second = Exchange(A, 1), Exchange(B, 1)
    assert lock.acquire(first, (True, False), 0.0)
    assert not lock.acquire(second, (True,), 0.0)
    assert lock.release(first)
    assert not lock.acquire(first, (True,), 0.0)
    assert lock.acquire(second, (True,), 0.0)


def test_a_lock_is_given_up_however_often_it_is_requested_and_then_what_waited_for_it_is_handled() -> None:
    relay = FlowRelay(View(A, 1, 3, 4, before=(B,), beside=(), after=(C,), cost={B: 1.0, C: 1.0}), Random(0))
    relay.books.add(True, C, D, 1, 0.0)
    for now in range(0, round(GIVE_UP_ROUNDS), 4):
        relay.handle(C, LockRequest(Exchange(C, 1), False, False), float(now))
        for _ in range(DEFERRED_MAX // 10):
            relay.handle(C, Drop(D, 1), float(now))
        relay.tick(float(now))
        assert relay.lock.locked
    assert len(relay.lock.deferred) == DEFERRED_MAX
    relay.tick(GIVE_UP_ROUNDS)
    assert not relay.lock.locked
    assert (relay.outflow, relay.lock.deferred) == ({}, [])


def test_a_reservation_is_repeated_under_its_number_and_given_up_in_the_end() -> None:
    reservations = Reservations(1.0)
    first = reservations.request(B, D, 2, 0.0, "")
    now = 0.0
    for _ in range(SENDS_MAX - 1):
        now += ANSWER_TIMEOUT_ROUNDS
        repeated, silent = reservations.tick(now)
        assert [send.message for send in repeated] == [first.message]
        assert silent == []
    repeated, silent = reservations.tick(now + ANSWER_TIMEOUT_ROUNDS)
    assert (repeated, silent) == ([], [B])
    assert reservations.pending_units(D) == 0


def test_a_handover_gives_no_data_node_more_than_it_wants_by_now() -> None:
    relay = ProcessId("r", 0)
    exchange = Exchange(A, 1)

    def offer(capacity: int, links: tuple[tuple[ProcessId, ProcessId, int], ...]) -> Locked:
        return Locked(exchange, capacity, links, links, ())

    offers = {A: offer(2, ((relay, A, 1),)), B: offer(1, ()), relay: offer(4, ((A, A, 1),))}
    change = changes([Handover((relay,), A, B)], offers)
    assert change[relay].inflow == {(A, A): -1, (B, B): 1}
    assert change[B].outflow == {(relay, B): 1}
    full = {**offers, B: offer(1, ((relay, B, 1),)), relay: offer(4, ((A, A, 1), (B, B, 1)))}
    assert changes([Handover((relay,), A, B)], full) == {}
    swapped = changes([Handover((relay,), A, B), Handover((relay,), B, A)], full)
    assert all(units == 0 for each in swapped.values() for units in (*each.inflow.values(), *each.outflow.values()))
    assert changes([Handover((relay,), A, B)], {A: offers[A], B: offers[B]}) == {}


def test_a_reliable_message_is_repeated_until_it_is_acknowledged_and_handled_once() -> None:
    sender, receiver = ReliableDelivery(1.0), ReliableDelivery(1.0)
    message = sender.wrap(FlowSend(B, "content"), 0.0).message
    assert isinstance(message, Reliable)
    assert sender.repeat(1.0) == []
    assert [send.message for send in sender.repeat(ACK_TIMEOUT_ROUNDS)] == [message]
    assert [receiver.first(A, message) for _ in range(2)] == [True, False]
    sender.acknowledged(Ack(message.number))
    assert sender.repeat(100.0) == []


def test_a_node_knows_the_capacity_of_the_narrowest_stage_ahead() -> None:
    labels = Labels({B: 1.0, C: 2.0})
    labels.received(B, Label(3, ((D, 5.0, 0),), 4, 7))
    labels.received(C, Label(0, (), 5, 7))
    assert labels.width == 7
    labels.forget(C)
    assert labels.width == 4
    assert [(path.node, path.units, path.cost) for path in labels.paths(D)] == [(B, 3, 6.0)]


def test_whatever_a_neighbour_claims_other_nodes_accept_what_follows_from_it() -> None:
    names = View(A, 1, 3, 4, before=(B,), beside=(), after=(C,), cost={})
    costs = FlowCosts(lambda: 1.0, {C: 1.0}.get)
    for node in (B, C):
        costs.learn(node, Times(COST_MAX_S, COST_MAX_S))
    view = replace(names, cost=costs.of(names))
    relay = FlowRelay(view, Random(0))
    relay.handle(C, Label(9, ((D, COST_MAX_S, 0),), 9, 9), 0.0)
    [label] = [send.message for send in relay.tick(0.0) if isinstance(send.message, Label)]
    assert is_plausible(label, A, replace(view, me=B, stage=0, after=(A,)), (D,), ())
    [sent] = [send.message for send in relay.handle(C, LockRequest(Exchange(C, 1), False, False), 1.0)]
    assert is_plausible(sent, A, replace(view, me=C, stage=2, before=(A,)), (D,), ())


def test_a_data_node_reports_no_more_units_and_paths_than_fit_into_a_message() -> None:
    source = FlowSource(View(A, -1, 1, 3, before=(C,), beside=(B,), after=(D,), cost={C: 1.0, D: 1.0}))
    for number in range(3):
        source.handle(C, ReserveUnits(A, WIDE, number), 0.0)
    source.handovers.retrace(0.0)
    [trace] = source.handovers.tick({D: 1}, 0.0)
    for _ in range(3):
        source.handle(C, replace(trace.message, path=(D,)), 0.0)
    [report] = source.handovers.tick({D: 1}, 1.0)
    assert report.message.paths == ((D,),)
    [offer] = [send.message for send in source.handle(B, LockRequest(Exchange(B, 1), False, False), 1.0)]
    assert offer.inflow == ((C, A, WIDE),)


def test_a_price_that_was_lost_is_announced_again() -> None:
    source = FlowSource(View(A, -1, 1, 3, before=(C,), beside=(B,), after=(D,), cost={C: 1.0, D: 1.0}))
    source.handle(D, Label(3, ((A, 5.0, 0),), 4, 7), 0.0)
    [price] = [send.message for send in source.tick(0.0) if isinstance(send.message, Price)]
    assert price.cost < INFINITE
    last: dict[ProcessId, Price] = {}
    for now in range(1, 100):
        last |= {send.to: send.message for send in source.tick(float(now)) if isinstance(send.message, Price)}
    expected = last.pop(B)
    assert last == {}
    for now in range(100, 100 + round(LABEL_REPEAT_MAX_ROUNDS)):
        again = [send.message for send in source.tick(float(now)) if isinstance(send.message, Price)]
        if again:
            break
    assert again == [expected]
