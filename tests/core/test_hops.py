"""A peer's hops: nothing is computed twice, and what is here already serves whoever asks for it."""

from __future__ import annotations

import itertools

import pytest

from swarmflow.core.actions import Action, Count, Discard, RunBackward, RunForward, RunLoss, RunReplay, Send
from swarmflow.core.entry import REPAIR
from swarmflow.core.events import BackwardComputed, ForwardComputed, LossComputed, Replayed
from swarmflow.core.hop import Hop
from swarmflow.core.hops import HopTable
from swarmflow.core.iwrr import Iwrr
from swarmflow.core.messages import (
    Accepted,
    Adopt,
    Backward,
    Cancel,
    CreditAvailable,
    CreditReturned,
    Denied,
    Done,
    DownstreamCost,
    Forward,
    Probe,
    Probed,
    ReserveSlot,
    Routed,
    SlotReserved,
)
from swarmflow.core.outbox import Dispatcher
from swarmflow.core.prober import Prober
from swarmflow.core.shortest import Shortest
from swarmflow.core.space import WITHOUT_GRAPH, Admission
from swarmflow.core.types import Epoch, Ref
from tests.core.samples import EPOCH, messages, microbatch, of_type, process, released

ME, LEADER, UP, UP2, DOWN, DOWN2 = (process(name) for name in ("me", "leader", "up", "up2", "down", "down2"))
INPUT, TARGETS, OUTPUT, GRADIENT, OWN = Ref(1, 10), Ref(2, 2), Ref(3, 10), Ref(4, 10), Ref(5, 10)


def hops(stage: int = 1, capacity: int = 4, stages: int = 3) -> HopTable:
    machine = HopTable(ME, stage, stages, capacity, Dispatcher(stage + 1, Iwrr()), LEADER)
    machine.open(EPOCH, (DOWN, DOWN2) if stage < stages - 1 else ())
    return machine


def forward(index: int = 0, stage: int = 1, attempt: int = 0, insist: bool = False) -> Forward:
    return Forward(microbatch(index), stage, attempt, insist=insist)


def finished() -> tuple[HopTable, list[Ref]]:
    """A middle peer that has done its hop of microbatch 0, and the bytes that it has released."""
    machine = hops()
    actions = machine.forward(UP, forward(), (INPUT, TARGETS))
    actions += machine.forward_computed(ForwardComputed(microbatch(0), OUTPUT), 1.0)
    [(to, _)] = messages(actions, Forward)
    machine.accepted(to, Accepted(microbatch(0), 2, 0), 1.0)
    actions += machine.backward(to, Backward(microbatch(0), 1, 0), (GRADIENT,), 2.0)
    actions += machine.backward_computed(BackwardComputed(microbatch(0), OWN))
    return machine, released(actions)


def test_the_way_of_a_microbatch() -> None:
    machine = hops()
    actions = machine.forward(UP, forward(), (INPUT, TARGETS))
    assert actions == [Send(UP, Accepted(microbatch(0), 1, 0)), RunForward(microbatch(0), INPUT)]
    actions = machine.forward_computed(ForwardComputed(microbatch(0), OUTPUT), 1.0)
    [sent] = [a for a in of_type(actions, Send) if isinstance(a.message, Forward)]
    assert sent.bodies == (OUTPUT, TARGETS)
    assert messages(actions, Routed) == [(UP, Routed(microbatch(0), 1, 0, sent.to))]
    actions = machine.backward(sent.to, Backward(microbatch(0), 1, 0), (GRADIENT,), 2.0)
    assert actions == [RunBackward(microbatch(0), GRADIENT)]
    actions = machine.backward_computed(BackwardComputed(microbatch(0), OWN))
    assert Send(UP, Backward(microbatch(0), 0, 0), (OWN,)) in actions
    assert messages(actions, Done) == [(LEADER, Done(microbatch(0), 1, 0))]
    assert machine.entries() == ((0, 0),)
    assert machine.held == machine.queued == 0


def test_the_last_stage_computes_the_loss() -> None:
    machine = hops(stage=2)
    actions = machine.forward(UP, forward(stage=2), (INPUT, TARGETS))
    assert of_type(actions, RunLoss) == [RunLoss(microbatch(0), INPUT, TARGETS)]
    actions = machine.loss_computed(LossComputed(microbatch(0), 3.5, 7, OWN))
    assert messages(actions, Done) == [(LEADER, Done(microbatch(0), 2, 0, 3.5, 7))]
    assert messages(actions, Backward) == [(UP, Backward(microbatch(0), 1, 0))]


def test_every_byte_is_released_once() -> None:
    machine, before = finished()
    after = released(machine.clear())
    assert sorted(before + after) == [INPUT, TARGETS, OUTPUT, GRADIENT, OWN]
    assert machine.clear() == []


def test_who_asks_again_is_answered_again_and_gets_the_gradient_again() -> None:
    machine, _ = finished()
    question = Adopt(microbatch(0), 1, 0)
    actions = machine.adopt(UP, question)
    assert messages(actions, Accepted) == [(UP, Accepted(microbatch(0), 1, 0))]
    assert Send(UP, Backward(microbatch(0), 0, 0), (OWN,)) in actions
    assert not of_type(actions, Count), "nothing is adopted"
    assert machine.entries() == ((0, 0),)


def test_a_newer_attempt_adopts_what_is_here_and_computes_nothing() -> None:
    machine, _ = finished()
    actions = machine.forward(UP2, forward(attempt=REPAIR), (Ref(8), Ref(9)))
    assert released(actions) == [Ref(8), Ref(9)]
    assert not of_type(actions, RunForward)
    assert messages(actions, Accepted) == [(UP2, Accepted(microbatch(0), 1, REPAIR))]
    assert Send(UP2, Backward(microbatch(0), 0, REPAIR), (OWN,)) in actions, "the stored gradient is handed over"
    assert machine.entries() == ((0, 0),), "what is accumulated keeps the attempt that the leader was told"


def test_who_has_had_the_gradient_gets_a_word() -> None:
    machine, _ = finished()
    actions = machine.adopt(UP2, Adopt(microbatch(0), 1, REPAIR, settled=True))
    assert Send(UP2, Backward(microbatch(0), 0, REPAIR)) in actions
    fresh = hops()
    fresh.forward(UP, Forward(microbatch(0), 1, REPAIR, settled=True), (INPUT, TARGETS))
    [(to, _)] = messages(fresh.forward_computed(ForwardComputed(microbatch(0), OUTPUT), 1.0), Forward)
    fresh.backward(to, Backward(microbatch(0), 1, 0), (GRADIENT,), 2.0)
    assert Send(UP, Backward(microbatch(0), 0, REPAIR)) in fresh.backward_computed(BackwardComputed(microbatch(0), OWN))


def test_a_word_is_not_enough_for_who_has_not_had_the_gradient() -> None:
    machine = hops()
    machine.forward(UP, forward(), (INPUT, TARGETS))
    [(to, _)] = messages(machine.forward_computed(ForwardComputed(microbatch(0), OUTPUT), 1.0), Forward)
    assert machine.backward(to, Backward(microbatch(0), 1, 0), (), 2.0) == []
    actions = machine.backward(to, Backward(microbatch(0), 1, 0), (GRADIENT,), 3.0)
    assert actions == [RunBackward(microbatch(0), GRADIENT)]


def test_what_was_sent_again_after_its_gradient_had_come_says_so() -> None:
    machine, _ = finished()
    holder = machine.dispatcher.holder(0)
    assert holder is not None
    [(to, sent)] = messages(machine.gone(holder, 3.0), Forward)
    assert (to != holder, sent.repair, sent.settled) == (True, True, True)
    assert machine.backward(to, Backward(microbatch(0), 1, sent.attempt), (), 4.0) == []
    assert machine.dispatcher.entries[0].returned


def test_an_adoption_under_way_gets_the_gradient_when_it_is_there() -> None:
    machine = hops(stage=2)
    machine.forward(UP, forward(stage=2), (INPUT, TARGETS))
    actions = machine.adopt(UP2, Adopt(microbatch(0), 2, REPAIR))
    assert messages(actions, Accepted) == [(UP2, Accepted(microbatch(0), 2, REPAIR))]
    assert not messages(actions, Backward)
    actions = machine.loss_computed(LossComputed(microbatch(0), 1.0, 1, OWN))
    assert messages(actions, Backward) == [(UP2, Backward(microbatch(0), 1, REPAIR))]


def test_what_was_denied_to_a_repair_is_not_taken_from_the_dead_any_more() -> None:
    machine = hops()
    actions = machine.adopt(UP2, Adopt(microbatch(0), 1, REPAIR))
    assert messages(actions, Denied) == [(UP2, Denied(microbatch(0), 1, REPAIR, "unknown"))]
    actions = machine.forward(UP, forward(attempt=0), (INPUT, TARGETS))
    assert messages(actions, Denied) == [(UP, Denied(microbatch(0), 1, 0, "stale"))]
    assert released(actions) == [INPUT, TARGETS]
    assert of_type(machine.forward(UP2, forward(attempt=REPAIR + 1), (INPUT, TARGETS)), RunForward)


def test_an_older_attempt_does_not_take_work_from_a_living_predecessor() -> None:
    machine = hops()
    machine.forward(UP2, forward(attempt=REPAIR), (INPUT, TARGETS))
    actions = machine.forward(UP, forward(attempt=0), (Ref(8), Ref(9)))
    assert messages(actions, Denied) == [(UP, Denied(microbatch(0), 1, 0, "stale"))]


def test_beyond_its_capacity_a_peer_denies_and_tells_when_there_is_room() -> None:
    machine = hops(stage=2, capacity=1)
    machine.forward(UP, forward(0, stage=2), (INPUT, TARGETS))
    actions = machine.forward(UP2, forward(1, stage=2), (Ref(8), Ref(9)))
    assert messages(actions, Denied) == [(UP2, Denied(microbatch(1), 2, 0, "full"))]
    actions = machine.loss_computed(LossComputed(microbatch(0), 1.0, 1, OWN))
    assert messages(actions, CreditAvailable) == [(UP2, CreditAvailable(2))]


def test_a_draining_peer_denies_unless_nobody_else_is_there() -> None:
    machine = hops()
    machine.admission.draining = True
    actions = machine.forward(UP, forward(), (INPUT, TARGETS))
    assert messages(actions, Denied) == [(UP, Denied(microbatch(0), 1, 0, "draining"))]
    assert of_type(machine.forward(UP, forward(insist=True), (INPUT, TARGETS)), RunForward)


def test_a_second_gradient_is_not_accumulated() -> None:
    machine, _ = finished()
    holder = machine.dispatcher.holder(0)
    assert holder is not None
    actions = machine.backward(holder, Backward(microbatch(0), 1, 0), (Ref(8),), 3.0)
    assert released(actions) == [Ref(8)]
    assert not of_type(actions, RunBackward)


def test_a_wrong_stage_and_missing_bodies_are_denied() -> None:
    machine = hops()
    assert messages(machine.forward(UP, forward(stage=0), (INPUT, TARGETS)), Denied)[0][1].reason == "stage"
    assert messages(machine.forward(UP, forward(), (INPUT,)), Denied)[0][1].reason == "invalid"
    assert machine.held == 0


def test_an_unusable_tensor_is_undone_without_leaving_bytes() -> None:
    machine = hops()
    machine.forward(UP, forward(), (INPUT, TARGETS))
    machine.forward_computed(ForwardComputed(microbatch(0), OUTPUT), 1.0)
    holder = machine.dispatcher.holder(0)
    assert holder is not None
    machine.backward(holder, Backward(microbatch(0), 1, 0), (GRADIENT,), 2.0)
    culprit, actions = machine.failed(microbatch(0))
    assert culprit == holder
    assert sorted(released(actions)) == sorted([INPUT, TARGETS, OUTPUT, GRADIENT])
    assert messages(actions, Denied) == [(UP, Denied(microbatch(0), 1, 0, "invalid"))]
    assert machine.clear() == []


def test_an_unusable_tensor_is_not_waited_for_any_more() -> None:
    """Who accumulated the next hop died meanwhile, and the other one is full."""
    machine = hops()
    machine.forward(UP, forward(), (INPUT, TARGETS))
    machine.forward_computed(ForwardComputed(microbatch(0), OUTPUT), 1.0)
    holder = machine.dispatcher.holder(0)
    assert holder is not None
    [other] = {DOWN, DOWN2} - {holder}
    machine.backward(holder, Backward(microbatch(0), 1, 0), (GRADIENT,), 2.0)
    machine.gone(holder, 3.0, ((2, 0),))
    machine.denied(other, Denied(microbatch(0), 2, REPAIR, "full"), 4.0)
    assert machine.dispatcher.waiting == 1
    _, actions = machine.failed(microbatch(0))
    assert sorted(released(actions)) == sorted([INPUT, TARGETS, OUTPUT, GRADIENT])
    assert machine.dispatcher.waiting == 0
    assert messages(machine.credit(other, 5.0), Forward) == []


def test_a_failure_of_an_earlier_epoch_leaves_this_one_alone() -> None:
    machine = hops()
    later = Epoch(1, 0)
    machine.open(later, (DOWN,))
    machine.forward(UP, Forward(microbatch(0, later), 1, 0), (INPUT, TARGETS))
    assert machine.failed(microbatch(0)) == (None, [])
    assert machine.held == 1


def test_who_is_relieved_of_a_hop_drops_it_unless_its_gradient_is_being_added() -> None:
    relieve = Cancel(microbatch(0), 1, 0)
    machine = hops()
    machine.forward(UP, forward(), (INPUT, TARGETS))
    assert machine.cancel(UP2, relieve) == [], "it is not that one's"
    assert of_type(machine.cancel(UP, relieve), Discard) == [Discard(microbatch(0))]
    assert machine.held == 0
    machine.forward(UP, forward(), (INPUT, TARGETS))
    machine.forward_computed(ForwardComputed(microbatch(0), OUTPUT), 1.0)
    holder = machine.dispatcher.holder(0)
    assert holder is not None
    machine.backward(holder, Backward(microbatch(0), 1, 0), (GRADIENT,), 2.0)
    assert machine.cancel(UP, relieve) == []


def test_an_orphan_that_is_being_taken_away_is_not_dropped_for_being_late() -> None:
    """Its gradient is in the sum already: dropped, it would stay there, and count beside the one that holds."""
    machine = hops(stage=2)
    machine.forward(UP, forward(stage=2), (INPUT, TARGETS))
    machine.reconcile(())
    undo = machine.loss_computed(LossComputed(microbatch(0), 3.5, 7, OWN))
    assert [replay.weight for replay in of_type(undo, RunReplay)] == [-1]
    assert machine.cancel(UP, Cancel(microbatch(0), 2, 0)) == []
    assert machine.settling
    machine.replayed(Replayed(microbatch(0), -1))
    assert not machine.settling


def reserve(index: int, attempt: int = 0, stage: int = 2) -> ReserveSlot:
    return ReserveSlot(microbatch(index), stage, attempt)


def test_room_is_kept_for_who_asked_until_the_bytes_come() -> None:
    machine = hops(stage=2, capacity=1)
    assert machine.reserve(UP, reserve(0)) == [Send(UP, SlotReserved(microbatch(0), 2, 0))]
    assert messages(machine.reserve(UP2, reserve(1)), Denied) == [(UP2, Denied(microbatch(1), 2, 0, "full"))]
    assert messages(machine.forward(UP2, forward(1, 2), (INPUT, TARGETS)), Denied)
    assert messages(machine.forward(UP, forward(0, 2), (INPUT, TARGETS)), Accepted)
    assert machine.admission.reserved == {}


def test_room_is_left_for_what_is_on_its_way() -> None:
    machine = hops(stage=2, capacity=2)
    assert messages(machine.reserve(UP, ReserveSlot(microbatch(1), 2, 0, ahead=1)), SlotReserved)
    assert messages(machine.reserve(UP, ReserveSlot(microbatch(2), 2, 0, ahead=1)), Denied)
    assert messages(machine.forward(UP, forward(0, 2), (INPUT, TARGETS)), Accepted)


def test_room_that_is_not_used_is_offered_to_who_was_denied() -> None:
    machine = hops(stage=2, capacity=1)
    machine.reserve(UP, reserve(0))
    machine.reserve(UP2, reserve(1))
    assert messages(machine.cancel(UP, Cancel(microbatch(0), 2, 0)), CreditAvailable) == [(UP2, CreditAvailable(2))]
    machine.reserve(UP2, reserve(1))
    machine.gone(UP2, 1.0)
    assert machine.admission.reserved == {}
    assert messages(machine.reserve(UP, reserve(2)), SlotReserved)


def test_room_that_one_does_not_need_is_offered_to_the_next() -> None:
    machine = hops(stage=2, capacity=1)
    machine.reserve(UP, reserve(0))
    for index, other in enumerate((UP2, DOWN), start=1):
        machine.reserve(other, reserve(index))
    assert messages(machine.cancel(UP, Cancel(microbatch(0), 2, 0)), CreditAvailable) == [(UP2, CreditAvailable(2))]
    assert messages(machine.message(UP2, CreditReturned(2), (), 1.0), CreditAvailable) == [(DOWN, CreditAvailable(2))]
    machine.reserve(DOWN, reserve(3))
    machine.reserve(UP, reserve(4))
    assert machine.message(UP2, CreditReturned(2), (), 2.0) == [], "there is none any more"


def test_who_has_the_hop_already_keeps_no_room_for_it() -> None:
    machine, _ = finished()
    answers = messages(machine.reserve(UP2, reserve(0, REPAIR, 1)), Accepted)
    assert answers == [(UP2, Accepted(microbatch(0), 1, REPAIR))]
    assert machine.admission.reserved == {}


def test_a_ballot_ends_what_was_reserved() -> None:
    machine = hops()
    machine.reserve(UP, reserve(0, stage=1))
    machine.reconcile(())
    assert machine.admission.reserved == {}
    assert messages(machine.forward(UP, forward(0), (INPUT, TARGETS)), Denied) == [
        (UP, Denied(microbatch(0), 1, 0, "full"))
    ]


def test_the_predecessor_hears_who_has_a_microbatch_when_it_is_sent() -> None:
    machine = hops()
    machine.open(EPOCH, (DOWN,), shares={DOWN: 0})
    machine.forward(UP, forward(), (INPUT, TARGETS))
    actions = machine.forward_computed(ForwardComputed(microbatch(0), OUTPUT), 1.0)
    assert [to for to, _ in messages(actions, ReserveSlot)] == [DOWN]
    assert messages(actions, Routed) == []
    actions = machine.message(DOWN, SlotReserved(microbatch(0), 2, 0), (), 2.0)
    assert [to for to, _ in messages(actions, Forward)] == [DOWN]
    assert messages(actions, Routed) == [(UP, Routed(microbatch(0), 1, 0, DOWN))]


def test_what_is_known_of_the_way_beyond_is_told_to_those_before() -> None:
    machine = HopTable(ME, 1, 3, 4, Dispatcher(2, Shortest(), prober=Prober(64 << 20)), LEADER)
    machine.open(EPOCH, (DOWN,), before=(UP, UP2))
    assert [to for to, _ in messages(machine.tick(0.0), Probe)] == [DOWN, DOWN]
    machine.message(DOWN, Probed(EPOCH, loaded=False), (), 0.0)
    told = messages(machine.message(DOWN, Probed(EPOCH, loaded=True), (), 1.0), DownstreamCost)
    assert [to for to, _ in told] == [UP, UP2]
    assert told[0][1].downstream_s == machine.dispatcher.router.downstream_s > 2 * 64.0
    assert machine.message(DOWN, DownstreamCost(EPOCH, 1.0), (), 2.0) == [], "it is about the same"
    assert messages(machine.message(DOWN, DownstreamCost(EPOCH, 50.0), (), 3.0), DownstreamCost)
    [(to, answer)] = messages(machine.message(UP, Probe(EPOCH, loaded=True), (Ref(9),), 4.0), Probed)
    assert (to, answer.downstream_s) == (UP, machine.dispatcher.router.downstream_s)


def gradient(machine: HopTable, index: int) -> list[Action]:
    """The gradient of a microbatch comes from whoever has it."""
    holder = machine.dispatcher.holder(index)
    assert holder is not None
    return machine.backward(holder, Backward(microbatch(index), 1, 0), (GRADIENT,), 3.0)


def test_a_peer_that_would_be_idle_takes_what_it_has_no_memory_for_and_does_the_forward_pass_twice() -> None:
    machine = hops(capacity=1)
    machine.forward(UP, forward(0), (INPUT, TARGETS))
    assert messages(machine.forward(UP, forward(1), (INPUT, TARGETS)), Denied), "it has something to compute"
    assert messages(machine.forward_computed(ForwardComputed(microbatch(0), OUTPUT), 1.0), CreditAvailable) == [
        (UP, CreditAvailable(1))
    ]
    actions = machine.forward(UP, forward(1), (INPUT, TARGETS))
    assert of_type(actions, RunForward) == [RunForward(microbatch(1), INPUT, keep=False)]
    assert machine.held == 1
    actions = machine.forward_computed(ForwardComputed(microbatch(1), OUTPUT), 2.0)
    [(to, _)] = messages(actions, Forward)
    assert machine.backward(to, Backward(microbatch(1), 1, 0), (GRADIENT,), 3.0) == [], "one graph is in memory"
    assert gradient(machine, 0) == [RunBackward(microbatch(0), GRADIENT)]
    actions = machine.backward_computed(BackwardComputed(microbatch(0), OWN))
    assert of_type(actions, RunReplay) == [RunReplay(microbatch(1), INPUT, TARGETS, GRADIENT, 1)]
    assert machine.held == 1
    actions = machine.replayed(Replayed(microbatch(1), 1, OWN))
    assert Send(UP, Backward(microbatch(1), 0, 0), (OWN,)) in actions
    assert messages(actions, Done) == [(LEADER, Done(microbatch(1), 1, 0))]


def test_without_memory_for_graphs_only_so_many_are_taken() -> None:
    machine = hops(capacity=1)
    for index in range(1 + WITHOUT_GRAPH):
        assert messages(machine.forward(UP, forward(index), (INPUT, TARGETS)), Accepted)
        machine.forward_computed(ForwardComputed(microbatch(index), OUTPUT), 1.0)
    assert messages(machine.forward(UP, forward(9), (INPUT, TARGETS)), Denied)


def test_the_gradient_of_a_relieved_hop_without_a_graph_is_not_dropped_while_it_is_added() -> None:
    machine = hops(capacity=1)
    for index in range(2):
        machine.forward(UP, forward(index), (INPUT, TARGETS))
        actions = machine.forward_computed(ForwardComputed(microbatch(index), OUTPUT), 1.0)
    [(to, _)] = messages(actions, Forward)
    gradient(machine, 0)
    machine.backward(to, Backward(microbatch(1), 1, 0), (GRADIENT,), 2.0)
    actions = machine.backward_computed(BackwardComputed(microbatch(0), OWN))
    assert [replay.weight for replay in of_type(actions, RunReplay)] == [1]
    assert machine.cancel(UP, Cancel(microbatch(1), 1, 0)) == []
    machine.reconcile(())
    undo = machine.replayed(Replayed(microbatch(1), 1, OWN))
    assert [replay.weight for replay in of_type(undo, RunReplay)] == [-1]


@pytest.mark.parametrize("how", ["done", "relieved", "taken away", "failed"])
def test_what_waits_for_the_memory_of_a_graph_goes_on_however_that_is_freed(how: str) -> None:
    machine = hops(capacity=1)
    for index in range(2):
        machine.forward(UP, forward(index), (INPUT, TARGETS))
        machine.forward_computed(ForwardComputed(microbatch(index), OUTPUT), 1.0)
    assert gradient(machine, 1) == []
    match how:
        case "done":
            gradient(machine, 0)
            actions = machine.backward_computed(BackwardComputed(microbatch(0), OWN))
        case "relieved":
            actions = machine.cancel(UP, Cancel(microbatch(0), 1, 0))
        case "taken away":
            actions = machine.reconcile(())[0]
            assert machine.admission.waiting == {}, "nobody counts it, and nothing of it was added"
        case "failed":
            actions = machine.failed(microbatch(0))[1]
    begun = [] if how == "taken away" else [RunReplay(microbatch(1), INPUT, TARGETS, GRADIENT, 1)]
    assert of_type(actions, RunReplay) == begun
    assert machine.held == len(begun)


def test_never_more_graphs_are_in_memory_than_there_is_memory_for() -> None:
    """Gradients come in any order; those without a graph wait for one that is freed."""
    capacity = 2
    for order in itertools.permutations(range(capacity + 3)):
        machine = hops(capacity=capacity)
        kept: set[int] = set()
        for index in order:
            work = of_type(machine.forward(UP, forward(index), (INPUT, TARGETS)), RunForward)
            kept |= {action.microbatch.index for action in work if action.keep}
            machine.forward_computed(ForwardComputed(microbatch(index), OUTPUT), 1.0)
        computing: list[Action] = []
        done: list[int] = []
        for index in sorted(order):
            computing += gradient(machine, index)
            while computing:
                action = computing.pop(0)
                if not isinstance(action, RunBackward | RunReplay):
                    continue
                kept.add(action.microbatch.index)
                assert len(kept) <= capacity
                kept.remove(action.microbatch.index)
                done.append(action.microbatch.index)
                computing += (
                    machine.backward_computed(BackwardComputed(action.microbatch, OWN))
                    if isinstance(action, RunBackward)
                    else machine.replayed(Replayed(action.microbatch, 1, OWN))
                )
        assert sorted(done) == sorted(order)


def test_a_slow_computer_takes_no_more_without_graphs_than_it_can_compute_while_they_come() -> None:
    """Else its queue would grow by what others could compute with a graph."""
    admission = Admission(1, beyond=4)
    admission.note(Hop(microbatch(0), 0, UP, False, None, INPUT, TARGETS, computing=False))
    admission.reserve(2, UP, 0)
    assert admission.admits(insist=False), "nothing is known yet"
    admission.now_s = 2.0
    admission.give_up(2, UP, 0)
    admission.arrive(2, kept=True)
    admission.now_s = 2.4
    admission.computed(2)
    admission.reserve(3, UP, 0)
    assert admission.admits(insist=False), "0.4 s a pass, four passes, and 2 s on the way"
    admission.reserve(4, UP, 0)
    assert not admission.admits(insist=False)
