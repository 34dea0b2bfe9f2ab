"""The journal: bounded; what was evicted is brought back with weight 0, and nothing counts or is reported twice."""

from __future__ import annotations

from swarmflow.core.pipeline import reconciling
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Action, RunBackward, RunForward, RunReplay, Send
from swarmflow.core.protocol.events import BackwardComputed, ForwardComputed, LossComputed, Replayed
from swarmflow.core.protocol.messages import (
    Accepted,
    Adopt,
    Backward,
    CreditAvailable,
    Denied,
    Done,
    Forward,
    Recall,
    Recalled,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Ref
from swarmflow.core.routing.iwrr import Iwrr
from tests.core.hops import computed, receive
from tests.core.samples import EPOCH, REPAIR, messages, microbatch, of_type, process, released

ME, LEADER, UP, UP2, DOWN, DOWN2 = (process(name) for name in ("me", "leader", "up", "up2", "down", "down2"))
INPUT, TARGETS, OUTPUT, GRADIENT, OWN = Ref(1, 10), Ref(2, 2), Ref(3, 10), Ref(4, 10), Ref(5, 10)
AGAIN = (Ref(11, 10), Ref(12, 2))
INPUT_ASKED, GRADIENT_ASKED = Recall(microbatch(0), 0, gradient=False), Recall(microbatch(0), 2, gradient=True)


def hops(stage: int = 1, stages: int = 3, capacity: int = 4) -> HopTable:
    """A peer that keeps nothing of what is done."""
    machine = HopTable(stage, stages, capacity, Dispatcher(stage + 1, Iwrr()), LEADER, journal_bytes_max=0)
    machine.open(EPOCH, (DOWN, DOWN2) if stage < stages - 1 else (), (UP, UP2))
    return machine


def finish(machine: HopTable, index: int = 0) -> list[Action]:
    """Have a middle peer do its hop of a microbatch, handed on to DOWN or DOWN2."""
    bodies = tuple(Ref(ref.key + 100 * index, ref.size_bytes) for ref in (INPUT, TARGETS, OUTPUT, GRADIENT, OWN))
    actions = receive(machine, UP, Forward(microbatch(index), 1, FIRST_ATTEMPT), bodies[:2])
    actions += computed(machine, ForwardComputed(microbatch(index), bodies[2]), 1.0)
    [(to, _)] = messages(actions, Forward)
    receive(machine, to, Accepted(microbatch(index), 2, FIRST_ATTEMPT), (), 1.0)
    actions += receive(machine, to, Backward(microbatch(index), 1, FIRST_ATTEMPT), bodies[3:4], 2.0)
    return actions + computed(machine, BackwardComputed(microbatch(index), bodies[4]))


def finished() -> tuple[HopTable, list[Ref]]:
    """A middle peer that has done its hop of microbatch 0 and evicted it, and what it has released."""
    machine = hops()
    return machine, released(finish(machine))


def last() -> HopTable:
    """A peer of the last stage that has done its hop and evicted it."""
    machine = hops(stage=2)
    receive(machine, UP, Forward(microbatch(0), 2, FIRST_ATTEMPT), (INPUT, TARGETS))
    computed(machine, LossComputed(microbatch(0), 3.5, 7, OWN))
    return machine


def test_what_is_done_is_evicted_but_for_its_targets() -> None:
    machine, gone = finished()
    assert sorted(gone) == [INPUT, OUTPUT, GRADIENT, OWN]
    assert machine.journal.size_bytes == TARGETS.size_bytes
    assert released(machine.clear()) == [TARGETS]


def test_within_its_bound_nothing_is_evicted_and_beyond_it_what_came_first() -> None:
    machine = hops()
    machine.journal.bytes_max = 86
    assert released(finish(machine, 0)) == released(finish(machine, 1)) == []
    assert len(released(finish(machine, 2))) == 4
    assert not machine.hops[microbatch(0)].kept
    assert len(machine.hops[microbatch(1)].kept) == len(machine.hops[microbatch(2)].kept) == 3


def test_a_lost_successor_gets_the_output_again_from_the_predecessors_input() -> None:
    machine, _ = finished()
    holder = machine.dispatcher.flights.holder(microbatch(0))
    assert holder is not None
    actions = machine.gone(holder, 3.0)
    assert messages(actions, Recall) == [(UP, INPUT_ASKED)]
    assert not messages(actions, Forward)
    actions = machine.restorer.on_recalled(UP, Recalled(microbatch(0), 0, gradient=False), AGAIN)
    assert released(actions) == [AGAIN[1]]
    assert of_type(actions, RunForward) == [RunForward(microbatch(0), AGAIN[0], TARGETS, keep=False, again=True)]
    actions = computed(machine, ForwardComputed(microbatch(0), Ref(13, 10)), 4.0)
    [sent] = [a for a in of_type(actions, Send) if isinstance(a.message, Forward)]
    assert sent.to != holder
    assert sent.bodies == (Ref(13, 10), TARGETS)
    assert released(actions) == [AGAIN[0]], "its input is of no use any more"
    actions = receive(machine, sent.to, Backward(microbatch(0), 1, REPAIR), (Ref(14, 10),), 5.0)
    assert sorted(released(actions)) == [Ref(13, 10), Ref(14, 10)]
    assert not of_type(actions, RunBackward)
    assert not messages(actions, Done)


def test_a_new_predecessor_gets_the_gradient_again_from_the_successors() -> None:
    machine, _ = finished()
    holder = machine.dispatcher.flights.holder(microbatch(0))
    assert holder is not None
    actions = receive(machine, UP2, Adopt(microbatch(0), 1, REPAIR))
    assert messages(actions, Accepted) == [(UP2, Accepted(microbatch(0), 1, REPAIR))]
    assert messages(actions, Recall) == [(UP2, INPUT_ASKED), (holder, GRADIENT_ASKED)]
    machine.restorer.on_recalled(UP2, Recalled(microbatch(0), 0, gradient=False), AGAIN)
    actions = machine.restorer.on_recalled(holder, Recalled(microbatch(0), 2, gradient=True), (Ref(14, 10),))
    assert of_type(actions, RunReplay) == [RunReplay(microbatch(0), AGAIN[0], TARGETS, Ref(14, 10), 0)]
    actions = computed(machine, Replayed(microbatch(0), 0, Ref(15, 10)))
    assert Send(UP2, Backward(microbatch(0), 0, REPAIR), (Ref(15, 10),)) in actions
    assert sorted(released(actions)) == [AGAIN[0], Ref(14, 10), Ref(15, 10)]
    assert not messages(actions, Done), "the leader knows of it"
    assert machine.entries(machine.epoch) == ((0, FIRST_ATTEMPT),)


def test_the_last_stage_computes_the_loss_again() -> None:
    machine = last()
    actions = receive(machine, UP2, Adopt(microbatch(0), 2, REPAIR))
    assert messages(actions, Recall) == [(UP2, Recall(microbatch(0), 1, gradient=False))]
    actions = machine.restorer.on_recalled(UP2, Recalled(microbatch(0), 1, gradient=False), AGAIN)
    assert of_type(actions, RunReplay) == [RunReplay(microbatch(0), AGAIN[0], TARGETS, None, 0)]
    actions = computed(machine, Replayed(microbatch(0), 0, Ref(15, 10)))
    assert messages(actions, Backward) == [(UP2, Backward(microbatch(0), 1, REPAIR))]
    assert not messages(actions, Done)


def test_a_repair_that_brings_the_input_along_is_not_asked_for_it() -> None:
    machine = last()
    actions = receive(machine, UP2, Forward(microbatch(0), 2, REPAIR, repair=True), AGAIN)
    assert not messages(actions, Recall)
    assert [replay.weight for replay in of_type(actions, RunReplay)] == [0]


def test_stage_0_owes_a_new_trainer_no_gradient() -> None:
    machine = hops(stage=0)
    receive(machine, UP, Forward(microbatch(0), 0, FIRST_ATTEMPT), (INPUT, TARGETS))
    [(to, _)] = messages(computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0), Forward)
    receive(machine, to, Backward(microbatch(0), 0, FIRST_ATTEMPT), (GRADIENT,), 2.0)
    computed(machine, BackwardComputed(microbatch(0), None))
    actions = receive(machine, UP2, Adopt(microbatch(0), 0, REPAIR))
    assert messages(actions, Backward) == [(UP2, Backward(microbatch(0), -1, REPAIR))]
    assert not messages(actions, Recall)


def test_a_neighbour_that_asks_gets_what_is_here_at_once_and_the_rest_when_it_is_there() -> None:
    machine = hops()
    receive(machine, UP, Forward(microbatch(0), 1, FIRST_ATTEMPT), (INPUT, TARGETS))
    question = Recall(microbatch(0), 1, gradient=False)
    assert machine.restorer.on_recall(DOWN2, question) == [], "it is being computed"
    answer = Recalled(microbatch(0), 1, gradient=False)
    actions = computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0)
    assert Send(DOWN2, answer, (OUTPUT, TARGETS)) in actions
    assert machine.restorer.on_recall(DOWN, question) == [Send(DOWN, answer, (OUTPUT, TARGETS))]


def test_who_never_had_a_hop_says_so() -> None:
    machine = hops()
    question = Recall(microbatch(0), 1, gradient=True)
    assert machine.restorer.on_recall(UP, question) == [Send(UP, Recalled(microbatch(0), 1, gradient=True))]
    machine, _ = finished()
    elsewhere = Recall(microbatch(0), 2, gradient=False)
    assert machine.restorer.on_recall(UP, elsewhere) == [Send(UP, Recalled(microbatch(0), 2, gradient=False))]


def test_where_the_one_asked_has_nothing_or_dies_the_others_are_asked() -> None:
    machine = last()
    receive(machine, UP, Adopt(microbatch(0), 2, REPAIR))
    question = Recall(microbatch(0), 1, gradient=False)
    assert messages(machine.restorer.on_recalled(UP, Recalled(microbatch(0), 1, gradient=False), ()), Recall) == [
        (UP2, question)
    ]
    assert machine.restorer.on_recalled(UP2, Recalled(microbatch(0), 1, gradient=False), ()) == []
    assert messages(machine.gone(UP, 3.0), Recall) == [(UP2, question)]


def test_who_is_silent_is_asked_again_later_and_later() -> None:
    machine = last()
    receive(machine, UP, Adopt(microbatch(0), 2, REPAIR))
    assert machine.tick(1.0) == []
    assert machine.next_deadline() == 16.0
    assert [to for to, _ in messages(machine.tick(16.0), Recall)] == [UP, UP2]
    assert machine.next_deadline() == 46.0


def test_an_answer_that_nobody_needs_or_that_does_not_fit_is_dropped() -> None:
    machine, _ = finished()
    for sender, answer in (
        (UP, Recalled(microbatch(0), 0, gradient=False)),
        (DOWN, Recalled(microbatch(0), 2, gradient=True)),
        (UP, Recalled(microbatch(7), 0, gradient=False)),
    ):
        assert released(machine.restorer.on_recalled(sender, answer, AGAIN)) == list(AGAIN)
    receive(machine, UP2, Adopt(microbatch(0), 1, REPAIR))
    for sender, answer, bodies in (
        (UP, Recalled(microbatch(0), 0, gradient=False), AGAIN[:1]),
        (DOWN, Recalled(microbatch(0), 2, gradient=True), AGAIN),
        (DOWN, Recalled(microbatch(0), 0, gradient=False), AGAIN),
        (UP, Recalled(microbatch(0), 1, gradient=False), AGAIN),
    ):
        assert released(machine.restorer.on_recalled(sender, answer, bodies)) == list(bodies)


def test_an_orphan_is_taken_away_with_bytes_of_its_neighbours() -> None:
    machine, _ = finished()
    actions, missing = reconciling.reconcile(machine, 1, ())
    assert missing == ""
    assert len(messages(actions, Recall)) == 2
    assert machine.settling
    machine.restorer.on_recalled(UP, Recalled(microbatch(0), 0, gradient=False), AGAIN)
    holder = machine.dispatcher.flights.holder(microbatch(0))
    assert holder is not None
    actions = machine.restorer.on_recalled(holder, Recalled(microbatch(0), 2, gradient=True), (Ref(14, 10),))
    assert [replay.weight for replay in of_type(actions, RunReplay)] == [-1]
    actions = computed(machine, Replayed(microbatch(0), -1))
    assert sorted(released(actions)) == sorted([*AGAIN[:1], Ref(14, 10), TARGETS])
    assert not machine.settling


def test_of_what_a_ballot_takes_away_and_nobody_else_has_the_sender_hears() -> None:
    """It may be a repair, of which the leader did not know yet as it began the ballot: the sender has its gradient."""
    machine, denied = hops(), Denied(microbatch(0), 1, FIRST_ATTEMPT, "orphan")
    finish(machine)
    finish(machine, 1)
    lost = [microbatch(0), microbatch(2)]
    assert reconciling.disclaim(machine, lost) == [], "it is in the sum, as far as is known here"
    reconciling.reconcile(machine, 1, ((1, FIRST_ATTEMPT),))
    assert reconciling.disclaim(machine, lost) == [Send(UP, denied)]
    machine.restorer.on_recalled(UP, Recalled(microbatch(0), 0, gradient=False), AGAIN)
    holder = machine.dispatcher.flights.holder(microbatch(0))
    assert holder is not None
    machine.restorer.on_recalled(holder, Recalled(microbatch(0), 2, gradient=True), (Ref(14, 10),))
    computed(machine, Replayed(microbatch(0), -1))
    assert machine.find(microbatch(0)) is None
    assert reconciling.disclaim(machine, lost) == [Send(UP, denied)]


def test_a_hop_that_is_dropped_is_denied_to_who_waits_for_its_bytes_and_to_its_sender() -> None:
    machine = hops()
    receive(machine, UP, Forward(microbatch(0), 1, FIRST_ATTEMPT), (INPUT, TARGETS))
    machine.restorer.on_recall(DOWN, Recall(microbatch(0), 1, gradient=False))
    actions, _ = reconciling.reconcile(machine, 1, ())
    assert Send(DOWN, Recalled(microbatch(0), 1, gradient=False)) in actions
    assert messages(actions, Denied) == [(UP, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"))]
    assert messages(reconciling.reopen(machine), CreditAvailable) == [(UP, CreditAvailable(1))]


def test_no_more_hops_than_fit_in_memory_are_brought_back_at_a_time() -> None:
    machine = hops(capacity=1)
    for index in range(4):
        finish(machine, index)
    mine = {index for index in range(4) if machine.dispatcher.flights.holder(microbatch(index)) == DOWN}
    assert len(mine) > 1
    [(_, first)] = messages(machine.gone(DOWN, 3.0), Recall)
    machine.restorer.on_recalled(UP, Recalled(first.microbatch, 0, gradient=False), AGAIN)
    actions = computed(machine, ForwardComputed(first.microbatch, Ref(13, 10)), 4.0)
    assert [to for to, _ in messages(actions, Forward)] == [DOWN2]
    actions = receive(machine, DOWN2, Backward(first.microbatch, 1, REPAIR), (Ref(14, 10),), 5.0)
    [(_, second)] = messages(actions, Recall)
    assert {first.microbatch.index, second.microbatch.index} <= mine


def test_what_waits_for_its_input_does_not_keep_one_waiting_whose_input_is_here() -> None:
    """The stage before may be full of the latter, and have no room to compute the input of the former."""
    machine = hops(capacity=1)
    for index in range(4):
        finish(machine, index)
    [(_, first)] = messages(machine.gone(DOWN, 3.0), Recall)
    second = next(each for each in machine.dispatcher.flights.starved if each != first.microbatch)
    machine.gone(UP, 4.0)
    receive(machine, UP2, Adopt(second, 1, REPAIR))
    actions = machine.restorer.on_recalled(UP2, Recalled(second, 0, gradient=False), AGAIN)
    assert [run.microbatch for run in of_type(actions, RunForward)] == [second]


def test_what_cannot_be_brought_back_stays_in_the_sum() -> None:
    """The step has to start over (test_peer_leaders): nothing takes its gradient away without its bytes."""
    machine = last()
    receive(machine, UP, Adopt(microbatch(0), 2, REPAIR))
    machine.restorer.on_recalled(UP, Recalled(microbatch(0), 1, gradient=False), AGAIN)
    hop = machine.find(microbatch(0))
    assert hop is not None
    assert hop.accumulated
    assert machine.entries(machine.epoch) == ((0, FIRST_ATTEMPT),)
