"""A repaired hop's gradient is asked for when it is announced, and used once the hop is computed."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.pipeline import turnover
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Action, Release, RunBackward, RunForward, Send
from swarmflow.core.protocol.events import BackwardComputed, ForwardComputed
from swarmflow.core.protocol.handovers import handovers_of
from swarmflow.core.protocol.messages import (
    Accepted,
    Adopt,
    Backward,
    Cancel,
    Denied,
    Forward,
    Recall,
    Recalled,
    Routed,
)
from swarmflow.core.protocol.types import Ref
from tests.core.hops import computed, receive
from tests.core.samples import EPOCH, REPAIR, messages, microbatch, of_type, released
from tests.core.test_hop_table import DOWN, DOWN2, GRADIENT, INPUT, OUTPUT, OWN, TARGETS, UP, UP2, hops

REPAIRED = Forward(microbatch(0), 1, REPAIR, repair=True, held_by=DOWN)
AFTER = REPAIR.passed_on()  # the attempt of the hop after it
QUESTION = Adopt(microbatch(0), 2, AFTER)
ANSWER = Backward(microbatch(0), 1, AFTER)
RECALL = Recall(microbatch(0), 1, gradient=False)


def announced(machine: HopTable) -> list[Action]:
    return receive(machine, UP, REPAIRED)


def run_forward(machine: HopTable, message: Forward = REPAIRED) -> list[Action]:
    """The tensors arrive, and the forward pass is done."""
    assert of_type(receive(machine, UP, message, (INPUT, TARGETS)), RunForward)
    return computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0)


def test_the_holder_is_asked_before_the_tensors_are_here_and_sees_how_the_hop_was_handed_over() -> None:
    actions = announced(hops())
    assert messages(actions, Adopt) == [(DOWN, QUESTION)]
    [(_, question)] = messages(actions, Adopt)
    assert question.handovers == handovers_of(UP, REPAIRED)
    assert not of_type(actions, RunForward)


def test_a_gradient_that_is_here_first_is_used_when_the_forward_pass_is_done() -> None:
    machine = hops()
    announced(machine)
    receive(machine, DOWN, Accepted(microbatch(0), 2, AFTER))
    assert receive(machine, DOWN, ANSWER, (GRADIENT,)) == []
    actions = run_forward(machine)
    assert [(run.microbatch, run.gradient) for run in of_type(actions, RunBackward)] == [(microbatch(0), GRADIENT)]
    assert not messages(actions, Adopt), "it needs to ask nobody any more"
    actions += computed(machine, BackwardComputed(microbatch(0), OWN))
    assert messages(actions, Backward) == [(UP, Backward(microbatch(0), 0, REPAIR))]
    assert sorted(released(machine.clear())) == [INPUT, TARGETS, OUTPUT, GRADIENT, OWN]


def test_a_gradient_that_is_on_its_way_is_waited_for_from_the_holder_that_has_answered() -> None:
    machine = hops()
    announced(machine)
    receive(machine, DOWN, Accepted(microbatch(0), 2, AFTER))
    receive(machine, DOWN, Routed(microbatch(0), 2, AFTER, UP2))
    actions = run_forward(machine)
    assert not messages(actions, Adopt)
    assert messages(actions, Routed) == [(UP, Routed(microbatch(0), 1, REPAIR, DOWN))]
    assert machine.dispatcher.flights.entries[microbatch(0)].successor == UP2
    assert of_type(receive(machine, DOWN, ANSWER, (GRADIENT,)), RunBackward)


def test_who_does_not_hold_it_is_asked_again_as_any_repair_asks() -> None:
    machine = hops()
    announced(machine)
    receive(machine, DOWN, Denied(microbatch(0), 2, AFTER, "unknown"))
    assert messages(run_forward(machine), Adopt) == [(DOWN, QUESTION)]


def test_what_belongs_to_another_attempt_is_not_used() -> None:
    machine = hops()
    announced(machine)
    receive(machine, DOWN, ANSWER, (GRADIENT,))
    later = replace(REPAIRED, attempt=REPAIR.next_repair())
    actions = run_forward(machine, later)
    assert Release((GRADIENT,)) in actions
    assert messages(actions, Adopt) == [(DOWN, replace(QUESTION, attempt=REPAIR.next_repair().passed_on()))]


def test_the_holder_that_needs_the_output_first_gets_it_once_it_is_computed() -> None:
    """It has evicted the hop's input: to compute the gradient again it recalls what it is asked for with."""
    machine = hops()
    announced(machine)
    receive(machine, DOWN, Accepted(microbatch(0), 2, AFTER))
    assert receive(machine, DOWN, RECALL) == [], "it is told later, and has nobody else to ask"
    assert not messages(receive(machine, UP, REPAIRED, (INPUT, TARGETS)), Recalled)
    actions = computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0)
    assert [send for send in of_type(actions, Send) if isinstance(send.message, Recalled)] == [
        Send(DOWN, Recalled(microbatch(0), 1, gradient=False), (OUTPUT, TARGETS))
    ]


def test_who_asked_for_the_output_of_a_hop_that_does_not_come_is_told_so() -> None:
    machine = hops()
    announced(machine)
    receive(machine, DOWN, RECALL)
    machine.admission.capacity = 0
    actions = receive(machine, UP, REPAIRED, (INPUT, TARGETS))
    assert messages(actions, Denied)
    assert messages(actions, Recalled) == [(DOWN, Recalled(microbatch(0), 1, gradient=False))]
    assert messages(receive(machine, DOWN, RECALL), Recalled), "nothing is announced any more"


def test_nothing_is_kept_of_the_dead_of_what_is_cancelled_and_after_the_step() -> None:
    for process in (UP, DOWN):
        machine = hops()
        announced(machine)
        receive(machine, DOWN, ANSWER, (GRADIENT,))
        assert Release((GRADIENT,)) in machine.gone(process, 1.0)
        assert GRADIENT not in released(machine.clear())
    machine = hops()
    announced(machine)
    receive(machine, DOWN, ANSWER, (GRADIENT,))
    receive(machine, UP, REPAIRED, (INPUT, TARGETS))
    assert Release((GRADIENT,)) in receive(machine, UP, Cancel(microbatch(0), 1, REPAIR))
    announced(machine)
    receive(machine, DOWN, ANSWER, (GRADIENT,))
    assert GRADIENT in released(machine.clear())


def test_nobody_is_asked_for_what_will_be_denied_and_for_no_more_than_fits() -> None:
    machine = hops(capacity=1)
    machine.admission.extra = 0
    assert messages(announced(machine), Adopt)
    assert announced_as(machine, 1) == [], "one that it has asked for has its only slot"
    closed = hops()
    closed.admission.draining = True
    assert announced(closed) == []
    assert receive(hops(), UP, replace(REPAIRED, held_by=None)) == []
    assert receive(hops(stage=2), UP, replace(REPAIRED, stage=2)) == [], "the last stage computes its gradients itself"
    here = hops()
    receive(here, UP, REPAIRED, (INPUT, TARGETS))
    assert announced(here) == [], "it was overtaken"


def announced_as(machine: HopTable, index: int) -> list[Action]:
    return receive(machine, UP, replace(REPAIRED, microbatch=microbatch(index)))


def test_a_gradient_of_somebody_else_is_not_taken() -> None:
    machine = hops()
    announced(machine)
    assert receive(machine, UP2, ANSWER, (Ref(9),)) == [Release((Ref(9),))]
    receive(machine, DOWN, ANSWER, (GRADIENT,))
    assert receive(machine, DOWN, ANSWER, (Ref(9),)) == [Release((Ref(9),))], "nor a second one"


def test_a_holder_that_is_not_named_in_the_step_begun_ahead_holds_nothing() -> None:
    machine = hops()
    turnover.begin_ahead(machine)
    ahead = replace(REPAIRED, microbatch=microbatch(0, EPOCH.following))
    receive(machine, UP, ahead)
    receive(machine, DOWN, Accepted(ahead.microbatch, 2, AFTER))
    turnover.go_on(machine, (DOWN2,), (UP,), {}, (), 1.0)
    receive(machine, UP, ahead, (INPUT, TARGETS))
    actions = computed(machine, ForwardComputed(ahead.microbatch, OUTPUT), 2.0)
    assert [to for to, _ in messages(actions, Adopt)] == [DOWN2]
