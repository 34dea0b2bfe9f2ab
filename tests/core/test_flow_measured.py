"""What a process measures of its own computing, and what links cost by that and by their transfer times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.protocol.actions import Reset, RunForward, RunLoss
from swarmflow.core.protocol.events import ForwardComputed, LossComputed, Tick
from swarmflow.core.protocol.messages.negotiation import Times
from swarmflow.core.protocol.types import DEFAULT_EXPONENT, Ref
from swarmflow.core.routing.compute_timer import ComputeTimer
from swarmflow.core.routing.flow.costs import REPEAT_S, UNKNOWN_S, FlowCosts, changed
from swarmflow.core.routing.flow.node_types import View
from swarmflow.core.routing.flow.units import SLACK, units
from tests.core.samples import microbatch, process

ME, A, B, C, D = (process(name) for name in ("me", "a", "b", "c", "d"))
DATA, TARGETS = Ref(1), Ref(2)


def test_work_that_waits_for_other_work_has_not_begun() -> None:
    pace = ComputeTimer()
    run = [RunForward(microbatch(0), DATA, DATA), RunForward(microbatch(1), DATA, DATA)]
    pace.watch(Tick(), list(run), 0.0)
    for index, now in ((0, 3.0), (1, 6.0)):
        pace.watch(ForwardComputed(microbatch(index), DATA), [], now)
    assert pace.compute_s == 3.0
    pace.watch(Tick(), [RunLoss(microbatch(2), DATA, TARGETS)], 6.0)
    pace.watch(Tick(), [Reset(DEFAULT_EXPONENT)], 7.0)
    pace.watch(LossComputed(microbatch(2), 1.0, 1, DATA), [], 60.0)
    assert pace.compute_s == 3.0


def view(stage: int, before: tuple[str, ...], after: tuple[str, ...], stages: int = 4) -> View:
    names = [tuple(map(process, side)) for side in (before, after)]
    return View(ME, stage, stages, 4, names[0], (), names[1], {})


def test_both_ends_of_a_link_reckon_with_the_same_cost() -> None:
    here = FlowCosts(lambda: 2.0, {B: 5.0}.get)
    there = FlowCosts(lambda: 4.0, lambda _: None)
    for send in here.announce(view(1, (), ("b",)), 0.0):
        there.learn(A, send.message)
    for send in there.announce(view(2, ("a",), ()), 0.0):
        here.learn(B, send.message)
    assert here.of(view(1, (), ("b",)))[B] == there.of(view(2, ("a",), ()))[A] == pytest.approx((2.0 + 4.0) / 2 + 5.0)


def test_times_are_announced_again_when_they_have_changed_by_a_tenth() -> None:
    tensor_s_to = {B: 5.0}
    costs = FlowCosts(lambda: 2.0, tensor_s_to.get)
    seen = view(1, ("a",), ("b",))
    assert [send.to for send in costs.announce(seen, 0.0)] == [A, B]
    tensor_s_to[B] = 5.4
    assert costs.announce(seen, 0.0) == []
    tensor_s_to[B] = 5.6
    assert [(send.to, send.message) for send in costs.announce(seen, 0.0)] == [(B, Times(2.0, 5.6))]


def test_times_are_announced_again_after_a_while_to_those_that_may_not_have_got_them() -> None:
    costs, seen = FlowCosts(lambda: 2.0, {B: 5.0}.get), view(1, ("a",), ("b",))
    sent = costs.announce(seen, 0.0)
    assert costs.announce(seen, REPEAT_S - 1.0) == []
    assert costs.announce(seen, REPEAT_S) == sent
    assert costs.announce(seen, REPEAT_S + 1.0) == []


def test_of_a_stranger_the_mean_of_the_others_is_taken() -> None:
    costs = FlowCosts(lambda: None, {A: 2.0, B: 4.0}.get)
    found = costs.of(view(1, (), ("a", "b", "c")))
    assert found[C] == pytest.approx(3.0)


def test_a_trainer_computes_nothing_and_what_returns_to_it_is_a_word() -> None:
    costs = FlowCosts(lambda: 2.0, lambda _: None)
    assert costs.of(view(3, (), ("a",)))[A] == pytest.approx(1.0)


def test_costs_have_changed_when_one_has_by_a_tenth_of_what_links_cost() -> None:
    assert not changed({A: 1.0, B: 3.0}, {A: 1.15, B: 3.0})
    assert changed({A: 1.0, B: 3.0}, {A: 1.3, B: 3.0})


def test_a_stage_is_shared_by_speed_and_nobody_gets_more_than_it_holds() -> None:
    speed = {A: 1.0, B: 1.0, C: 2.0}
    large, small = dict.fromkeys((A, B, C), 100), {A: 1, B: 8, C: 8}
    assert [units(p, large, speed, 8, 5) for p in (A, B, C)] == [3, 3, 6]
    assert [units(p, small, speed, 8, 5) for p in (A, B, C)] == [1, 4, 8]
    assert sum(units(p, small, speed, 8, 5) for p in small) >= SLACK * 8


def test_a_stage_without_the_memory_is_shared_by_speed_as_far_as_peers_compute_without_graphs() -> None:
    capacity = {A: 1, B: 3}
    assert [units(p, capacity, {A: 9.0, B: 1.0}, 8, 5) for p in (A, B)] == [5, 7]
    assert [units(p, capacity, {A: 1.0, B: 3.0}, 8, 5) for p in (A, B)] == [3, 9]
    assert units(A, {A: 1, D: 1}, {A: 1.0, D: 1.0}, 800, 5) == 5


@pytest.mark.parametrize(("stage", "tensors"), [(0, 1), (1, 2), (3, 1)])
def test_a_peer_serves_what_its_links_carry_if_that_is_less_than_it_computes(stage: int, tensors: int) -> None:
    """Both ways a tensor crosses the links of the first and of the last stage for each microbatch, two any other's."""
    seen = replace(view(stage, ("a",), ("b",)), beside=(C,))
    mine, mate = FlowCosts(lambda: 2.0, {B: 5.0}.get), FlowCosts(lambda: 0.5, {B: 0.1}.get)
    for costs, transfer_s in ((mine, 5.0), (mate, 0.1)):
        costs.learn(A, Times(1.0, transfer_s))
    for send in mate.announce(replace(seen, me=C, beside=(ME,)), 0.0):
        if send.to == ME:
            mine.learn(C, send.message)
    assert mine.rates(seen, [ME, C]) == pytest.approx({ME: 1 / (5.0 * tensors), C: 1 / 0.5})


def test_of_several_links_the_mean_rate_counts() -> None:
    costs = FlowCosts(lambda: 0.1, {B: 1.0, C: 4.0}.get)
    assert costs.rates(view(0, (), ("b", "c")), [ME]) == pytest.approx({ME: (1.0 + 0.25) / 2})


def test_who_has_told_nothing_serves_as_much_as_the_others() -> None:
    costs = FlowCosts(lambda: 3.0, lambda _: None)
    costs.learn(B, Times(1.0, UNKNOWN_S))
    found = costs.rates(replace(view(1, ("a",), ()), beside=(B, C)), [ME, B, C])
    assert found == pytest.approx({ME: 1 / 3.0, B: 1.0, C: 1 / 2.0})
