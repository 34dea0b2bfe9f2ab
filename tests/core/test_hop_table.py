"""A peer's hops: nothing is computed twice, and what is here already serves whoever asks for it."""

from __future__ import annotations

import pytest

from swarmflow.core.pipeline import passes, reconciling, turnover
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Count, Discard, RunBackward, RunForward, RunLoss, RunReplay, Send
from swarmflow.core.protocol.events import BackwardComputed, ForwardComputed, LossComputed, Replayed
from swarmflow.core.protocol.messages import (
    Accepted,
    Adopt,
    Backward,
    Cancel,
    CreditAvailable,
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
from swarmflow.core.protocol.types import FIRST_ATTEMPT, WITHOUT_GRAPH, Attempt, Epoch, Ref
from swarmflow.core.routing.iwrr import Iwrr
from swarmflow.core.routing.prober import Prober
from swarmflow.core.routing.shortest import Shortest
from tests.core.hops import computed, receive
from tests.core.samples import EPOCH, REPAIR, messages, microbatch, of_type, process, released

ME, LEADER, UP, UP2, DOWN, DOWN2 = (process(name) for name in ("me", "leader", "up", "up2", "down", "down2"))
INPUT, TARGETS, OUTPUT, GRADIENT, OWN = Ref(1, 10), Ref(2, 2), Ref(3, 10), Ref(4, 10), Ref(5, 10)


def hops(stage: int = 1, capacity: int = 4, stages: int = 3, without_graph: int = WITHOUT_GRAPH) -> HopTable:
    machine = HopTable(stage, stages, capacity, Dispatcher(stage + 1, Iwrr()), LEADER, without_graph=without_graph)
    machine.open(EPOCH, (DOWN, DOWN2) if stage < stages - 1 else ())
    return machine


def forward(index: int = 0, stage: int = 1, attempt: Attempt = FIRST_ATTEMPT, insist: bool = False) -> Forward:
    return Forward(microbatch(index), stage, attempt, insist=insist)


def finished() -> tuple[HopTable, list[Ref]]:
    """A middle peer that has done its hop of microbatch 0, and the bytes that it has released."""
    machine = hops()
    actions = receive(machine, UP, forward(), (INPUT, TARGETS))
    actions += computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0)
    [(to, _)] = messages(actions, Forward)
    receive(machine, to, Accepted(microbatch(0), 2, FIRST_ATTEMPT), (), 1.0)
    actions += receive(machine, to, Backward(microbatch(0), 1, FIRST_ATTEMPT), (GRADIENT,), 2.0)
    actions += computed(machine, BackwardComputed(microbatch(0), OWN))
    return machine, released(actions)


def test_what_is_to_be_sent_is_work_too() -> None:
    machine = hops()
    receive(machine, UP, forward(), (INPUT, TARGETS))
    computing_s = machine.workload.work_s
    machine.dispatcher.router.links.record_probe(process("next"), 1000, 100.0, 0.0)
    assert machine.workload.work_s == 200.0 > computing_s, "an activation, and a gradient back"


def test_a_reserved_slot_is_work_and_so_is_what_waits_in_the_uplink() -> None:
    machine = hops(stage=2)
    machine.dispatcher.router.links.record_probe(process("mate"), 1000, 100.0, 0.0)
    receive(machine, UP, ReserveSlot(microbatch(0), 2, FIRST_ATTEMPT))
    assert machine.workload.work_s == 100.0, "a gradient"
    receive(machine, UP, forward(0, 2), (INPUT, TARGETS))
    actions = computed(machine, LossComputed(microbatch(0), 1.0, 1, GRADIENT), 1.0)
    machine.workload.watch(actions, 1.0)
    machine.admission.now_s = 61.0
    assert messages(actions, Backward)
    assert machine.workload.work_s == pytest.approx(40.0), "of the gradient that was sent a minute ago"
    machine.admission.now_s = 200.0
    assert machine.workload.work_s == 0.0


def test_the_way_of_a_microbatch() -> None:
    machine = hops()
    actions = receive(machine, UP, forward(), (INPUT, TARGETS))
    accepted = Accepted(microbatch(0), 1, FIRST_ATTEMPT, queued=1, work_s=machine.workload.work_s)
    assert actions == [Send(UP, accepted), RunForward(microbatch(0), INPUT, TARGETS)]
    assert machine.workload.work_s > 0.0, "of a forward and a backward pass, whose times are not known"
    actions = computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0)
    [sent] = [a for a in of_type(actions, Send) if isinstance(a.message, Forward)]
    assert sent.bodies == (OUTPUT, TARGETS)
    assert messages(actions, Routed) == [(UP, Routed(microbatch(0), 1, FIRST_ATTEMPT, sent.to))]
    actions = receive(machine, sent.to, Backward(microbatch(0), 1, FIRST_ATTEMPT), (GRADIENT,), 2.0)
    assert actions == [RunBackward(microbatch(0), GRADIENT)]
    actions = computed(machine, BackwardComputed(microbatch(0), OWN))
    assert Send(UP, Backward(microbatch(0), 0, FIRST_ATTEMPT), (OWN,)) in actions
    assert messages(actions, Done) == [(LEADER, Done(microbatch(0), 1, FIRST_ATTEMPT))]
    assert machine.entries(machine.epoch) == ((0, FIRST_ATTEMPT),)
    assert machine.held == machine.queued == 0


def test_the_last_stage_computes_the_loss() -> None:
    machine = hops(stage=2)
    actions = receive(machine, UP, forward(stage=2), (INPUT, TARGETS))
    assert of_type(actions, RunLoss) == [RunLoss(microbatch(0), INPUT, TARGETS)]
    actions = computed(machine, LossComputed(microbatch(0), 3.5, 7, OWN))
    assert messages(actions, Done) == [(LEADER, Done(microbatch(0), 2, FIRST_ATTEMPT, 3.5, 7))]
    assert messages(actions, Backward) == [(UP, Backward(microbatch(0), 1, FIRST_ATTEMPT))]


def test_every_byte_is_released_once() -> None:
    machine, before = finished()
    after = released(machine.clear())
    assert sorted(before + after) == [INPUT, TARGETS, OUTPUT, GRADIENT, OWN]
    assert machine.clear() == []


def test_who_asks_again_is_answered_again_and_gets_the_gradient_again() -> None:
    machine, _ = finished()
    question = Adopt(microbatch(0), 1, FIRST_ATTEMPT)
    actions = receive(machine, UP, question)
    assert messages(actions, Accepted) == [(UP, Accepted(microbatch(0), 1, FIRST_ATTEMPT))]
    assert Send(UP, Backward(microbatch(0), 0, FIRST_ATTEMPT), (OWN,)) in actions
    assert not of_type(actions, Count), "nothing is adopted"
    assert machine.entries(machine.epoch) == ((0, FIRST_ATTEMPT),)


def test_a_newer_attempt_adopts_what_is_here_and_computes_nothing() -> None:
    machine, _ = finished()
    actions = receive(machine, UP2, forward(attempt=REPAIR), (Ref(8), Ref(9)))
    assert released(actions) == [Ref(8), Ref(9)]
    assert not of_type(actions, RunForward)
    assert messages(actions, Accepted) == [(UP2, Accepted(microbatch(0), 1, REPAIR))]
    assert Send(UP2, Backward(microbatch(0), 0, REPAIR), (OWN,)) in actions, "the stored gradient is handed over"
    assert machine.entries(machine.epoch) == ((0, FIRST_ATTEMPT),), (
        "what is accumulated keeps the attempt that the leader was told"
    )


def test_who_has_had_the_gradient_gets_a_word() -> None:
    machine, _ = finished()
    actions = receive(machine, UP2, Adopt(microbatch(0), 1, REPAIR, settled=True))
    assert Send(UP2, Backward(microbatch(0), 0, REPAIR)) in actions
    fresh = hops()
    receive(fresh, UP, Forward(microbatch(0), 1, REPAIR, settled=True), (INPUT, TARGETS))
    [(to, _)] = messages(computed(fresh, ForwardComputed(microbatch(0), OUTPUT), 1.0), Forward)
    receive(fresh, to, Backward(microbatch(0), 1, REPAIR), (GRADIENT,), 2.0)
    assert Send(UP, Backward(microbatch(0), 0, REPAIR)) in computed(fresh, BackwardComputed(microbatch(0), OWN))


def test_a_word_is_not_enough_for_who_has_not_had_the_gradient() -> None:
    machine = hops()
    receive(machine, UP, forward(), (INPUT, TARGETS))
    [(to, _)] = messages(computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0), Forward)
    assert receive(machine, to, Backward(microbatch(0), 1, FIRST_ATTEMPT), (), 2.0) == []
    actions = receive(machine, to, Backward(microbatch(0), 1, FIRST_ATTEMPT), (GRADIENT,), 3.0)
    assert actions == [RunBackward(microbatch(0), GRADIENT)]


def test_what_was_sent_again_after_its_gradient_had_come_says_so() -> None:
    machine, _ = finished()
    holder = machine.dispatcher.flights.holder(microbatch(0))
    assert holder is not None
    [(to, sent)] = messages(machine.gone(holder, 3.0), Forward)
    assert (to != holder, sent.repair, sent.settled) == (True, True, True)
    assert receive(machine, to, Backward(microbatch(0), 1, sent.attempt), (), 4.0) == []
    assert machine.dispatcher.flights.entries[microbatch(0)].returned


def test_an_adoption_under_way_gets_the_gradient_when_it_is_there() -> None:
    machine = hops(stage=2)
    receive(machine, UP, forward(stage=2), (INPUT, TARGETS))
    actions = receive(machine, UP2, Adopt(microbatch(0), 2, REPAIR))
    assert messages(actions, Accepted) == [
        (UP2, Accepted(microbatch(0), 2, REPAIR, queued=1, work_s=machine.workload.work_s))
    ]
    assert not messages(actions, Backward)
    machine.gone(UP, 1.0)
    actions = computed(machine, LossComputed(microbatch(0), 1.0, 1, OWN))
    assert messages(actions, Backward) == [(UP2, Backward(microbatch(0), 1, REPAIR))]


def test_a_predecessor_that_lives_gets_the_gradient_too_whoever_says_to_have_taken_its_place() -> None:
    machine = hops(stage=2)
    receive(machine, UP, forward(stage=2), (INPUT, TARGETS))
    for number in (1, 2):
        receive(machine, UP2, Adopt(microbatch(0), 2, Attempt(0, number)))
    actions = computed(machine, LossComputed(microbatch(0), 1.0, 1, OWN))
    gradients = [action for action in of_type(actions, Send) if isinstance(action.message, Backward)]
    assert gradients == [
        Send(UP2, Backward(microbatch(0), 1, Attempt(0, 2)), (OWN,)),
        Send(UP, Backward(microbatch(0), 1, FIRST_ATTEMPT), (OWN,)),
    ]
    [(_, done)] = messages(actions, Done)
    assert (done.attempt, [each.giver for each in done.handovers]) == (FIRST_ATTEMPT, [UP]), (
        "it had the hop to hand over"
    )
    assert not messages(receive(machine, UP2, Adopt(microbatch(0), 2, Attempt(0, 3))), Done)


def test_what_was_denied_to_a_repair_is_not_taken_from_the_dead_any_more() -> None:
    machine = hops()
    machine.gone(UP, 0.0)
    actions = receive(machine, UP2, Adopt(microbatch(0), 1, REPAIR))
    assert messages(actions, Denied) == [(UP2, Denied(microbatch(0), 1, REPAIR, "unknown"))]
    for sender in (UP, UP2):
        actions = receive(machine, sender, forward(attempt=FIRST_ATTEMPT), (INPUT, TARGETS))
        assert messages(actions, Denied) == [(sender, Denied(microbatch(0), 1, FIRST_ATTEMPT, "stale"))]
        assert released(actions) == [INPUT, TARGETS]
    assert of_type(receive(machine, UP2, forward(attempt=REPAIR.next()), (INPUT, TARGETS)), RunForward)


def test_who_lives_can_hand_over_what_another_one_has_asked_for_in_vain() -> None:
    machine = hops()
    receive(machine, UP2, Adopt(microbatch(0), 1, Attempt(0, 9)))
    assert of_type(receive(machine, UP, forward(attempt=FIRST_ATTEMPT), (INPUT, TARGETS)), RunForward)


def test_an_older_attempt_does_not_take_work_from_a_living_predecessor() -> None:
    machine = hops()
    receive(machine, UP2, forward(attempt=REPAIR), (INPUT, TARGETS))
    actions = receive(machine, UP, forward(attempt=FIRST_ATTEMPT), (Ref(8), Ref(9)))
    assert messages(actions, Denied) == [(UP, Denied(microbatch(0), 1, FIRST_ATTEMPT, "stale"))]


def test_beyond_its_capacity_a_peer_denies_and_tells_when_there_is_room() -> None:
    machine = hops(capacity=1, without_graph=0)
    receive(machine, UP, forward(0), (INPUT, TARGETS))
    actions = receive(machine, UP2, forward(1), (Ref(8), Ref(9)))
    assert messages(actions, Denied) == [(UP2, Denied(microbatch(1), 1, FIRST_ATTEMPT, "full"))]
    [(to, _)] = messages(computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0), Forward)
    receive(machine, to, Backward(microbatch(0), 1, FIRST_ATTEMPT), (GRADIENT,), 2.0)
    actions = computed(machine, BackwardComputed(microbatch(0), OWN))
    assert messages(actions, CreditAvailable) == [(UP2, CreditAvailable(1))]


def test_a_draining_peer_denies_unless_nobody_else_is_there() -> None:
    machine = hops()
    machine.admission.draining = True
    actions = receive(machine, UP, forward(), (INPUT, TARGETS))
    assert messages(actions, Denied) == [(UP, Denied(microbatch(0), 1, FIRST_ATTEMPT, "draining"))]
    assert of_type(receive(machine, UP, forward(insist=True), (INPUT, TARGETS)), RunForward)


def test_a_second_gradient_is_not_accumulated() -> None:
    machine, _ = finished()
    holder = machine.dispatcher.flights.holder(microbatch(0))
    assert holder is not None
    actions = receive(machine, holder, Backward(microbatch(0), 1, FIRST_ATTEMPT), (Ref(8),), 3.0)
    assert released(actions) == [Ref(8)]
    assert not of_type(actions, RunBackward)


def test_a_wrong_stage_and_missing_bodies_are_denied() -> None:
    machine = hops()
    assert messages(receive(machine, UP, forward(stage=0), (INPUT, TARGETS)), Denied)[0][1].reason == "stage"
    assert messages(receive(machine, UP, forward(), (INPUT,)), Denied)[0][1].reason == "invalid"
    assert machine.held == 0


def test_an_unusable_tensor_is_undone_without_leaving_bytes() -> None:
    machine = hops()
    receive(machine, UP, forward(), (INPUT, TARGETS))
    computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0)
    holder = machine.dispatcher.flights.holder(microbatch(0))
    assert holder is not None
    receive(machine, holder, Backward(microbatch(0), 1, FIRST_ATTEMPT), (GRADIENT,), 2.0)
    culprit, actions = passes.failed(machine, microbatch(0))
    assert culprit == holder
    assert of_type(actions, Discard) == [Discard(microbatch(0))], "its graph takes memory"
    assert sorted(released(actions)) == sorted([INPUT, TARGETS, OUTPUT, GRADIENT])
    assert messages(actions, Denied) == [(UP, Denied(microbatch(0), 1, FIRST_ATTEMPT, "invalid"))]
    assert machine.clear() == []


def test_an_unusable_tensor_is_not_waited_for_any_more() -> None:
    """Who accumulated the next hop died meanwhile, and the other one is full."""
    machine = hops()
    receive(machine, UP, forward(), (INPUT, TARGETS))
    computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0)
    holder = machine.dispatcher.flights.holder(microbatch(0))
    assert holder is not None
    [other] = {DOWN, DOWN2} - {holder}
    receive(machine, holder, Backward(microbatch(0), 1, FIRST_ATTEMPT), (GRADIENT,), 2.0)
    machine.gone(holder, 3.0, [microbatch(0)])
    receive(machine, other, Denied(microbatch(0), 2, REPAIR, "full"), (), 4.0)
    assert len(machine.dispatcher.waiting) == 1
    _, actions = passes.failed(machine, microbatch(0))
    assert sorted(released(actions)) == sorted([INPUT, TARGETS, OUTPUT, GRADIENT])
    assert len(machine.dispatcher.waiting) == 0
    assert messages(receive(machine, other, CreditAvailable(2), (), 5.0), Forward) == []


def test_a_failure_of_an_earlier_epoch_leaves_this_one_alone() -> None:
    machine = hops()
    later = Epoch(1, 0)
    machine.open(later, (DOWN,))
    receive(machine, UP, Forward(microbatch(0, later), 1, FIRST_ATTEMPT), (INPUT, TARGETS))
    assert passes.failed(machine, microbatch(0)) == (None, [])
    assert machine.held == 1


def test_who_is_relieved_of_a_hop_drops_it_unless_its_gradient_is_being_added() -> None:
    relieve = Cancel(microbatch(0), 1, FIRST_ATTEMPT)
    machine = hops()
    receive(machine, UP, forward(), (INPUT, TARGETS))
    assert receive(machine, UP2, relieve) == [], "it is not that one's"
    assert of_type(receive(machine, UP, relieve), Discard) == [Discard(microbatch(0))]
    assert machine.held == 0
    receive(machine, UP, forward(), (INPUT, TARGETS))
    computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0)
    holder = machine.dispatcher.flights.holder(microbatch(0))
    assert holder is not None
    receive(machine, holder, Backward(microbatch(0), 1, FIRST_ATTEMPT), (GRADIENT,), 2.0)
    assert receive(machine, UP, relieve) == []


def test_an_orphan_that_is_being_taken_away_is_not_dropped_for_being_late() -> None:
    """Its gradient is in the sum already: dropped, it would stay there, and count beside the one that holds."""
    machine = hops(stage=2)
    receive(machine, UP, forward(stage=2), (INPUT, TARGETS))
    reconciling.reconcile(machine, 1, ())
    undo = computed(machine, LossComputed(microbatch(0), 3.5, 7, OWN))
    assert [replay.weight for replay in of_type(undo, RunReplay)] == [-1]
    assert receive(machine, UP, Cancel(microbatch(0), 2, FIRST_ATTEMPT)) == []
    assert machine.settling
    computed(machine, Replayed(microbatch(0), -1))
    assert not machine.settling


def test_the_predecessor_hears_who_has_a_microbatch_when_it_is_sent() -> None:
    machine = hops()
    machine.open(EPOCH, (DOWN,), shares={DOWN: 0})
    receive(machine, UP, forward(), (INPUT, TARGETS))
    actions = computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0)
    assert [to for to, _ in messages(actions, ReserveSlot)] == [DOWN]
    assert messages(actions, Routed) == []
    actions = receive(machine, DOWN, SlotReserved(microbatch(0), 2, FIRST_ATTEMPT), (), 2.0)
    assert [to for to, _ in messages(actions, Forward)] == [DOWN]
    assert messages(actions, Routed) == [(UP, Routed(microbatch(0), 1, FIRST_ATTEMPT, DOWN))]


def test_what_is_known_of_the_way_beyond_is_told_to_those_before() -> None:
    machine = HopTable(1, 3, 4, Dispatcher(2, Shortest(), prober=Prober(64 << 20)), LEADER)
    machine.open(EPOCH, (DOWN,), before=(UP, UP2))
    assert [to for to, _ in messages(machine.tick(0.0), Probe)] == [DOWN, DOWN]
    for sender in (UP, UP2, process("mate")):
        receive(machine, sender, Probe(EPOCH, loaded=False), (), 0.0)
    receive(machine, DOWN, Probed(EPOCH, loaded=False), (), 0.0)
    told = messages(receive(machine, DOWN, Probed(EPOCH, loaded=True), (), 1.0), DownstreamCost)
    assert [to for to, _ in told] == [UP, UP2], "who has measured the way here, and goes it"
    assert told[0][1].downstream_s == machine.dispatcher.router.downstream_s == 2 * 64.0
    assert receive(machine, DOWN, DownstreamCost(EPOCH, 1.0), (), 2.0) == [], "it is about the same"
    assert messages(receive(machine, DOWN, DownstreamCost(EPOCH, 50.0), (), 3.0), DownstreamCost)
    [(to, answer)] = messages(receive(machine, UP, Probe(EPOCH, loaded=True), (Ref(9),), 4.0), Probed)
    assert (to, answer.downstream_s) == (UP, machine.dispatcher.router.downstream_s)


def test_nothing_is_kept_of_who_is_gone_where_every_step_is_begun_ahead() -> None:
    machine = hops()
    machine.open(EPOCH, (DOWN, DOWN2), before=(UP, UP2))
    receive(machine, UP, Probe(EPOCH, loaded=False))
    for index in range(2):
        receive(machine, UP, forward(index), (INPUT, TARGETS))
        computed(machine, ForwardComputed(microbatch(index), OUTPUT), 1.0)
    next_stage = machine.dispatcher.next_stage
    assert of_type(machine.gone(DOWN, 2.0), Send)
    counts = next_stage.held, next_stage.unasked, machine.admission._unasked
    assert [set(count) for count in counts] == [{DOWN2}, {DOWN2}, {UP}]
    turnover.begin_ahead(machine)
    later = Forward(microbatch(0, EPOCH.following), 1, FIRST_ATTEMPT)
    receive(machine, UP, later, (INPUT, TARGETS), 3.0)
    turnover.go_on(machine, (DOWN2,), (UP2,), {}, (), 4.0)
    assert machine.dead == {UP}, "it has handed a hop of this step on"
    assert (machine.probers, set(machine.admission._unasked)) == ({}, set())
    turnover.begin_ahead(machine)
    turnover.go_on(machine, (DOWN2,), (UP2,), {}, (), 5.0)
    assert machine.dead == set()
