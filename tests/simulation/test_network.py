"""The pretended network against what can be worked out by hand, and an oracle that moves bytes in small steps."""

from __future__ import annotations

import heapq
import itertools
import math
from random import Random

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.background_share import DOUBLES_S, SHARE_FIRST
from swarmflow.simulator.background import Background
from swarmflow.simulator.distributions import Constant, Integers, Normal, OneOf, Uniform, share_of
from swarmflow.simulator.network import INFINITE, Flight, Matrix, Port, Shared, Spread

A, B, C, D = (ProcessId(name, 1) for name in "abcd")
MB = 1_000_000
Message = tuple[float, ProcessId, ProcessId, int, bool]


def network(latency_s: float = 0.0, rate: float = INFINITE, **ports: tuple[float, float]) -> Shared:
    """Machines with their (up, down) in bytes a second, all as far from each other."""
    numbered = {name: Port(number, up, down) for number, (name, (up, down)) in enumerate(ports.items())}
    return Shared(Spread(Constant(latency_s), Constant(rate), 0), numbered)


def deliver(shared: Shared, messages: list[Message]) -> list[float]:
    """When the receivers have these (time, sender, receiver, bytes, bulk) messages, asked for in the order of time."""
    number = itertools.count()
    waiting: list[tuple[float, int, int, Flight | None]]
    waiting = [(time_s, next(number), index, None) for index, (time_s, *_) in enumerate(messages)]
    heapq.heapify(waiting)
    had = [0.0] * len(messages)
    while waiting:
        now_s, _, index, flight = heapq.heappop(waiting)
        _, sender, receiver, size_bytes, bulk = messages[index]
        if flight is not None:
            had[index] = flight.received_s(now_s)
        else:
            flight = shared.path(sender, receiver).send(size_bytes, bulk, now_s)
            heapq.heappush(waiting, (flight.due_s, next(number), index, flight))
    return had


@pytest.mark.parametrize(("up", "rate", "down"), [(1.0, 4.0, 2.0), (4.0, 1.0, 2.0), (4.0, 2.0, 1.0), (1.0, 1.0, 1.0)])
def test_alone_a_message_takes_latency_and_bytes_over_the_narrowest_way(up: float, rate: float, down: float) -> None:
    shared = network(0.5, rate * MB, a=(up * MB, INFINITE), b=(INFINITE, down * MB))
    [received_s] = deliver(shared, [(3.0, A, B, 2 * MB, True)])
    assert received_s == pytest.approx(3.0 + 0.5 + 2.0)


def test_an_uplink_is_shared_by_what_is_sent() -> None:
    shared = network(0.1, a=(MB, MB), b=(MB, MB), c=(MB, MB))
    first, second = deliver(shared, [(0.0, A, B, MB, True), (0.0, A, C, MB, True)])
    assert first == pytest.approx(1.1)
    assert second == pytest.approx(2.1)


def test_a_downlink_is_shared_by_what_comes() -> None:
    shared = network(0.1, a=(MB, MB), b=(MB, MB), c=(MB, MB))
    had = deliver(shared, [(0.0, A, C, MB, True), (0.0, B, C, MB, True)])
    assert sorted(had) == pytest.approx([1.1, 2.1])


def test_a_far_sender_does_not_hold_up_a_near_one() -> None:
    links = Matrix(((0.0, 0.0, 9.0), (0.0, 0.0, 0.1), (9.0, 0.1, 0.0)), ((INFINITE,) * 3,) * 3)
    shared = Shared(links, {"a": Port(0), "b": Port(1), "c": Port(2, INFINITE, MB)})
    far, near = deliver(shared, [(0.0, A, C, MB, True), (0.1, B, C, MB, True)])
    assert far == pytest.approx(10.0)
    assert near == pytest.approx(1.2)


def test_a_wide_downlink_takes_slow_ways_side_by_side() -> None:
    shared = network(0.0, MB, a=(INFINITE, INFINITE), b=(INFINITE, INFINITE), c=(INFINITE, 100 * MB))
    had = deliver(shared, [(0.0, A, C, 10 * MB, True), (0.0, B, C, 10 * MB, True)])
    assert had == pytest.approx([10.0, 10.0])


def yielding(shared: Shared, tensors: list[tuple[float, int, bool]]) -> list[float]:
    """When the uplink of A has sent these (time, bytes, yields) tensors to B."""
    number = itertools.count()
    waiting: list[tuple[float, int, int, Flight | None]]
    waiting = [(time_s, next(number), index, None) for index, (time_s, *_) in enumerate(tensors)]
    heapq.heapify(waiting)
    sent = [0.0] * len(tensors)
    while waiting:
        now_s, _, index, flight = heapq.heappop(waiting)
        if flight is None:
            _, size_bytes, yields = tensors[index]
            flight = shared.path(A, B).send(size_bytes, True, now_s, yields=yields)
        elif (flight := flight.delayed(now_s)).due_s <= now_s:
            sent[index] = flight.last_s
            continue
        heapq.heappush(waiting, (flight.due_s, next(number), index, flight))
    return sent


def test_a_tensor_that_yields_is_interrupted_by_those_that_do_not_and_goes_on_after_them() -> None:
    shared = network(a=(MB, INFINITE), b=(INFINITE, INFINITE))
    sent = yielding(shared, [(0.0, 4 * MB, True), (1.0, 2 * MB, False), (2.0, MB, False), (2.5, MB, True)])
    assert sent == pytest.approx([7.0, 3.0, 4.0, 8.0])


@pytest.mark.parametrize("seed", range(5))
def test_an_uplink_with_tensors_that_yield_is_never_idle_while_one_waits(seed: int) -> None:
    random = Random(seed)
    times_s = sorted(random.uniform(0.0, 30.0) for _ in range(40))
    tensors = [(time_s, random.randrange(1, 2 * MB), random.random() < 0.5) for time_s in times_s]
    sent = yielding(network(a=(MB, INFINITE), b=(INFINITE, INFINITE)), tensors)
    busy_s = 0.0
    for time_s, size_bytes, _ in tensors:
        busy_s = max(busy_s, time_s) + size_bytes / MB
    assert max(sent) == pytest.approx(busy_s)
    alone = [tensor for tensor in tensors if not tensor[2]]
    first = yielding(network(a=(MB, INFINITE), b=(INFINITE, INFINITE)), alone)
    assert [s for s, tensor in zip(sent, tensors, strict=True) if not tensor[2]] == pytest.approx(first)


def test_words_go_before_tensors_and_take_their_time_from_them() -> None:
    shared = network(0.0, a=(MB, MB), b=(MB, MB))
    messages = [(0.0, A, B, MB, True), (0.0, A, B, MB // 10, False), (0.0, A, B, MB, True)]
    tensor_s, word_s, next_s = deliver(shared, messages)
    assert word_s == pytest.approx(0.1)
    assert tensor_s <= next_s
    assert next_s == pytest.approx(2.1)


@pytest.mark.parametrize(("sent_s", "waits_s"), [(0.1, 0.4), (0.8, 0.2), (1.5, 0.0)])
def test_words_wait_behind_what_the_uplink_has_taken_in(sent_s: float, waits_s: float) -> None:
    shared = network(0.0, a=(MB, MB), b=(MB, MB), c=(MB, MB))
    shared.queue_s = 0.4
    tensor_s, word_s = deliver(shared, [(0.0, A, B, MB, True), (sent_s, A, C, MB // 10, False)])
    assert word_s == pytest.approx(sent_s + waits_s + 0.1)
    assert tensor_s == pytest.approx(1.0)


def test_words_wait_behind_tensors_that_have_come_together_but_not_behind_one_that_flows_through() -> None:
    lone = network(0.0, a=(MB, MB), b=(MB, MB), c=(MB, MB))
    lone.queue_s = 9.0
    assert deliver(lone, [(0.0, A, C, MB, True), (0.9, B, C, 1000, False)])[1] == pytest.approx(0.901)
    many = network(0.0, a=(MB, MB), b=(MB, MB), c=(MB, MB), d=(MB, MB))
    many.queue_s = 9.0
    messages = [(0.0, A, C, MB, True), (0.0, B, C, MB, True), (1.0, D, C, 1000, False)]
    assert deliver(many, messages)[2] == pytest.approx(2.001, abs=2e-3)


def arrival_s(chunk: Background, now_s: float = 0.0) -> float:
    """When a background message arrives if nothing else is sent any more."""
    while (due_s := chunk.next_s(now_s)) is not None:
        now_s = due_s
    return now_s


def test_background_gets_what_tensors_leave_and_takes_nothing_from_them() -> None:
    shared = network(0.1, a=(MB, MB), b=(MB, MB), c=(MB, MB))
    first, second = (shared.path(A, B).background(MB, 0.0) for _ in range(2))
    assert (arrival_s(first), arrival_s(second)) == pytest.approx((1.1, 2.0), abs=0.11)
    tensor = shared.path(A, C).send(MB, True, 0.5)
    assert tensor.received_s(tensor.due_s) == pytest.approx(1.6), "as if it were alone"
    assert arrival_s(first, 0.5) == pytest.approx(2.0, abs=0.11), "half of it went before"
    assert arrival_s(second, 0.5) == pytest.approx(3.0, abs=0.11)


@pytest.mark.parametrize("busy", ["uplink", "downlink"])
def test_background_ends_beside_tensors_without_end(busy: str) -> None:
    shared = network(0.0, a=(MB, MB), b=(MB, MB), c=(MB, MB), d=(MB, MB))
    pair = (A, C) if busy == "uplink" else (C, B)
    now_s, tensors = 0.0, 0
    for _ in range(60):
        chunk = shared.path(A, B).background(MB, now_s, share=0.0)
        while chunk.next_s(now_s) is not None:
            tensor = shared.path(*pair).send(MB, True, now_s)
            now_s = tensor.received_s(tensor.due_s)
            tensors += 1
    assert now_s == pytest.approx(tensors + 60.0, abs=1.0), "the link has carried both, and was never idle"
    if busy == "uplink":
        grown_s = DOUBLES_S * math.log2(1 + 60.0 * math.log(2) / (SHARE_FIRST * DOUBLES_S))  # when the shares are 60 s
        assert now_s == pytest.approx(grown_s, rel=0.1), "three per cent at first, then more and more"
    else:
        assert now_s == pytest.approx(120.0, rel=0.1), "nobody gives way where both arrive"


def test_a_tensor_and_what_arrives_in_the_background_share_a_downlink_evenly() -> None:
    shared = network(0.0, a=(MB, MB), b=(MB, MB), c=(MB, MB))
    tensor = shared.path(C, B).send(2 * MB, True, 0.0)
    chunk = shared.path(A, B).background(MB, 0.0)
    assert tensor.received_s(tensor.due_s) == pytest.approx(3.0), "by when both are through"
    assert arrival_s(chunk) <= 3.0


def test_background_gets_the_share_of_a_busy_uplink_that_it_is_given() -> None:
    shared = network(0.0, a=(MB, MB), b=(MB, MB), c=(MB, MB))
    now_s, chunk = 0.0, shared.path(A, B).background(15 * MB, 0.0, share=0.75)
    while chunk.next_s(now_s) is not None:
        now_s = shared.path(A, C).send(MB // 10, True, now_s).last_s
    assert now_s == pytest.approx(20.0, abs=0.5)
    before_s = now_s
    for _ in range(10):
        now_s = shared.path(A, C).send(MB // 10, True, now_s).last_s
    assert now_s == pytest.approx(before_s + 1.0), "nothing is loaded any more"


def test_small_messages_are_not_held_up_by_a_large_one_in_the_background() -> None:
    shared = network(0.0, a=(MB, MB), b=(MB, MB), c=(MB, MB))
    now_s = 0.0
    for share in (0.5, 0.75):
        shared.path(A, B).background(20 * MB, now_s, share)
        for _ in range(50):
            sent_s = shared.path(A, C).send(MB // 10, True, now_s).last_s
            assert sent_s <= now_s + 0.1 / (1.0 - share) + 1e-6
            now_s = sent_s


def test_a_jitter_delays_each_message_by_another_time_and_no_message_overtakes() -> None:
    shared = network(0.1, a=(INFINITE, INFINITE), b=(INFINITE, INFINITE))
    shared.jitter_s = Uniform(0.0, 1.0)
    apart = deliver(shared, [(10.0 * number, A, B, 1, True) for number in range(200)])
    delays_s = [received_s - 10.0 * number for number, received_s in enumerate(apart)]
    assert 0.1 <= min(delays_s) < 0.15
    assert 1.05 < max(delays_s) <= 1.1
    assert sum(delays_s) / len(delays_s) == pytest.approx(0.6, abs=0.1)
    close = deliver(shared, [(3000.0 + 0.01 * number, A, B, 1, number % 2 == 0) for number in range(200)])
    for lane in (close[::2], close[1::2]):
        assert lane == sorted(lane)
        assert len(set(lane)) > 1


def test_links_need_not_be_symmetric() -> None:
    links = Matrix(((0.0, 1.0), (2.0, 0.0)), ((INFINITE, MB), (2 * MB, INFINITE)))
    shared = Shared(links, {"a": Port(0), "b": Port(1)})
    there, back = deliver(shared, [(0.0, A, B, 2 * MB, True), (0.0, B, A, 2 * MB, True)])
    assert (there, back) == pytest.approx((3.0, 3.0))


@pytest.mark.parametrize("queue_s", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(20))
def test_order_is_kept_within_a_lane(seed: int, queue_s: float) -> None:
    draw = Random(seed)
    shared = network(0.05, 3 * MB, **{name: (draw.choice((1, 5)) * MB, draw.choice((1, 5)) * MB) for name in "abcd"})
    shared.queue_s = queue_s
    messages: list[Message] = []
    for _ in range(200):
        sender, receiver = draw.sample((A, B, C, D), 2)
        messages.append((draw.uniform(0, 20), sender, receiver, draw.choice((100, MB)), draw.random() < 0.5))
    messages.sort(key=lambda message: message[0])
    last: dict[tuple[ProcessId, ProcessId, bool], float] = {}
    for (sent_s, sender, receiver, _, bulk), received_s in zip(messages, deliver(shared, messages), strict=True):
        assert received_s >= max(sent_s + 0.05, last.get((sender, receiver, bulk), 0.0))
        last[sender, receiver, bulk] = received_s


def fair_end_s(messages: list[tuple[float, int]], rate: float, step_s: float = 1e-3) -> float:
    """The oracle: bytes drip through one link in small steps, shared evenly by all that is in flight."""
    left = [float(size) for _, size in messages]
    for tick in itertools.count():
        flying = [i for i, (sent_s, _) in enumerate(messages) if sent_s <= tick * step_s and left[i] > 0]
        if not flying and all(amount <= 0 for amount in left):
            return tick * step_s
        budget = rate * step_s
        while flying and budget > 1e-9:  # what one does not need goes to the others
            each = budget / len(flying)
            taken = [min(each, left[i]) for i in flying]
            for i, amount in zip(flying, taken, strict=True):
                left[i] -= amount
            budget -= sum(taken)
            flying = [i for i in flying if left[i] > 1e-9]
        left = [amount if amount > 1e-6 else 0.0 for amount in left]
    raise AssertionError("the loop has no end of its own")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("shared_end", ["uplink", "downlink"])
def test_all_that_shares_a_link_is_through_when_even_sharing_would_have_it_through(seed: int, shared_end: str) -> None:
    draw = Random(seed)
    sizes = [(draw.uniform(0, 2), draw.randint(1, MB)) for _ in range(draw.randint(2, 8))]
    sizes.sort()
    if shared_end == "uplink":
        shared = network(0.0, a=(MB, INFINITE), b=(INFINITE, INFINITE), c=(INFINITE, INFINITE))
        messages = [(sent_s, A, draw.choice((B, C)), size, True) for sent_s, size in sizes]
    else:
        shared = network(0.0, a=(INFINITE, INFINITE), b=(INFINITE, INFINITE), c=(INFINITE, MB))
        messages = [(sent_s, draw.choice((A, B)), C, size, True) for sent_s, size in sizes]
    ends = deliver(shared, messages)
    assert max(ends) == pytest.approx(fair_end_s(sizes, MB), abs=0.01)
    assert all(end_s >= sent_s + size / MB - 1e-9 for end_s, (sent_s, size) in zip(ends, sizes, strict=True))


def test_a_long_run_keeps_no_pair_that_is_idle() -> None:
    shared = network(0.0, MB, **{f"n{number}": (INFINITE, INFINITE) for number in range(200)})
    for number in range(20_000):
        one, other = ProcessId(f"n{number % 200}", 1), ProcessId(f"n{number // 200 % 199}", 1)
        shared.path(one, other).send(1000, True, float(number))
    assert len(shared._pairs) < 10_000


def test_pairs_are_drawn_alike_each_time_and_evenly() -> None:
    shares = [share_of(1, one, other) for one in range(100) for other in range(100)]
    assert shares == [share_of(1, one, other) for one in range(100) for other in range(100)]
    assert len(set(shares)) == len(shares)
    assert all(0 <= share < 1 for share in shares)
    assert sum(shares) / len(shares) == pytest.approx(0.5, abs=0.02)
    spread = Spread(Uniform(0.0, 1.0), Constant(MB), 3, symmetric=True)
    assert spread.between(4, 9) == spread.between(9, 4)
    assert Spread(Uniform(0.0, 1.0), Constant(MB), 3).between(4, 9) != spread.between(9, 5)


def test_distributions_have_the_values_that_they_say() -> None:
    shares = [number / 1000 for number in range(1000)]
    assert {Integers(1, 3).at(share) for share in shares} == {1, 2, 3}
    assert {OneOf((5.0, 7.0)).at(share) for share in shares} == {5.0, 7.0}
    assert [Uniform(2.0, 4.0).at(share) for share in (0.0, 0.5)] == [2.0, 3.0]
    normal = [Normal(10.0, 8.0, 1.0).at(share) for share in shares]
    assert min(normal) == 1.0
    assert max(normal) == 19.0
    assert sum(normal) / 1000 == pytest.approx(10.0, abs=0.1)
