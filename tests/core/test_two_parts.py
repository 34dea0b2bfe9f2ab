"""A backward pass in two parts: the gradient of the input goes upstream first; the hop is done after both."""

from __future__ import annotations

from swarmflow.core.pipeline import reconciling
from swarmflow.core.pipeline.hop import HopState
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Action, RunBackward, RunReplay, Send
from swarmflow.core.protocol.events import BackwardComputed, ForwardComputed, InputGradientComputed, LossComputed
from swarmflow.core.protocol.messages import Accepted, Adopt, Backward, Cancel, Done, Forward
from swarmflow.core.protocol.types import FIRST_ATTEMPT
from swarmflow.core.routing.compute_timer import ComputeTimer
from tests.core.hops import computed, receive
from tests.core.samples import REPAIR, messages, microbatch, of_type, released
from tests.core.test_hop_table import GRADIENT, INPUT, LEADER, OUTPUT, OWN, TARGETS, UP, UP2, forward, hops

EARLY = InputGradientComputed(microbatch(0), OWN)
GIVEN = Send(UP, Backward(microbatch(0), 0, FIRST_ATTEMPT), (OWN,))


def computing() -> HopTable:
    """A middle peer that computes a backward pass."""
    machine = hops()
    receive(machine, UP, forward(), (INPUT, TARGETS))
    [(to, _)] = messages(computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0), Forward)
    receive(machine, to, Accepted(microbatch(0), 2, FIRST_ATTEMPT), (), 1.0)
    receive(machine, to, Backward(microbatch(0), 1, FIRST_ATTEMPT), (GRADIENT,), 2.0)
    return machine


def half_done() -> tuple[HopTable, list[Action]]:
    """The same with the gradient of the input, and what it does with it."""
    machine = computing()
    return machine, computed(machine, EARLY)


def test_the_gradient_of_the_input_goes_upstream_before_the_hop_is_done() -> None:
    machine, actions = half_done()
    assert actions == [GIVEN]
    assert machine.queued == 0, "nobody waits for what is left"
    assert machine.held == 1, "its graph takes memory"
    actions = computed(machine, BackwardComputed(microbatch(0), None))
    assert messages(actions, Done) == [(LEADER, Done(microbatch(0), 1, FIRST_ATTEMPT))]
    assert not messages(actions, Backward)
    assert machine.held == 0


def test_so_it_does_on_the_last_stage() -> None:
    machine = hops(stage=2)
    receive(machine, UP, forward(stage=2), (INPUT, TARGETS))
    assert messages(computed(machine, EARLY), Backward) == [(UP, Backward(microbatch(0), 1, FIRST_ATTEMPT))]
    actions = computed(machine, LossComputed(microbatch(0), 3.5, 7, None))
    [(_, done)] = messages(actions, Done)
    assert (done.loss_sum, done.tokens) == (3.5, 7)
    assert not messages(actions, Backward)


def test_a_predecessor_that_comes_between_the_parts_gets_it_at_once() -> None:
    machine, _ = half_done()
    actions = receive(machine, UP2, Adopt(microbatch(0), 1, REPAIR))
    assert messages(actions, Backward) == [
        (UP2, Backward(microbatch(0), 0, REPAIR)),
        (UP, Backward(microbatch(0), 0, FIRST_ATTEMPT)),
    ]
    assert not messages(computed(machine, BackwardComputed(microbatch(0), None)), Backward)


def test_what_the_ballot_does_not_count_is_given_to_nobody() -> None:
    machine = computing()
    reconciling.reconcile(machine, 1, ())
    assert machine.hops[microbatch(0)].state is HopState.DISOWNED
    assert computed(machine, EARLY) == []
    [undo] = of_type(computed(machine, BackwardComputed(microbatch(0), None)), RunReplay)
    assert undo.weight == -1


def test_of_a_hop_that_was_dropped_nothing_is_kept() -> None:
    machine = hops()
    receive(machine, UP, forward(), (INPUT, TARGETS))
    receive(machine, UP, Cancel(microbatch(0), 1, FIRST_ATTEMPT))
    assert released(computed(machine, EARLY)) == [OWN]


def test_a_pass_takes_the_time_of_both_parts_whatever_is_computed_between_them() -> None:
    timer = ComputeTimer()
    timer.watch(ForwardComputed(microbatch(9), OUTPUT), [RunBackward(microbatch(0), GRADIENT)], 10.0)
    timer.watch(EARLY, [], 14.0)
    timer.watch(ForwardComputed(microbatch(8), OUTPUT), [], 17.0)
    timer.watch(BackwardComputed(microbatch(0), None), [], 19.0)
    assert timer.seconds(0, 1) == 4.0 + 2.0
