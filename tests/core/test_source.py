"""The source: each microbatch of a step is formed by one trainer, and no more at a time than the stages hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.source import MicrobatchSource
from swarmflow.core.protocol.actions import FormMicrobatch
from swarmflow.core.protocol.events import MicrobatchFormed
from swarmflow.core.protocol.messages import Accepted, Adopt, Assign, Backward, Denied, Forward, OpenStep
from swarmflow.core.protocol.types import FIRST_ATTEMPT, WITHOUT_GRAPH, Attempt, Epoch, Ref, Roster
from swarmflow.core.routing.iwrr import Iwrr
from tests.core.samples import EPOCH, LINEAGE, member, messages, microbatch, of_type, process, released

PEER = process("p")


def source(name: str = "t0", microbatches: int = 8) -> MicrobatchSource:
    return MicrobatchSource(process(name), microbatches, Dispatcher(0, Iwrr()))


def opening(trainers: int = 1, capacity: int = 2, epoch: Epoch = EPOCH) -> OpenStep:
    feeders = tuple(member(f"t{number}", -1) for number in range(trainers))
    return OpenStep(1, epoch, Roster(((member("p", 0, capacity),), (member("q", 1, 100),)), feeders), LINEAGE)


@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(1, 20))
def test_the_trainers_share_a_step_without_gap_or_overlap(trainers: int, microbatches: int) -> None:
    formed: list[int] = []
    for number in range(trainers):
        machine = source(f"t{number}", microbatches)
        actions = machine.open(opening(trainers, capacity=1000), 0.0)
        formed += [action.microbatch.index for action in of_type(actions, FormMicrobatch)]
    assert sorted(formed) == list(range(microbatches))


def test_no_more_are_under_way_than_the_first_stage_holds() -> None:
    machine = source(microbatches=4 + WITHOUT_GRAPH)
    order = [action.microbatch.index for action in of_type(machine.open(opening(capacity=1), 0.0), FormMicrobatch)]
    assert order == list(range(1 + WITHOUT_GRAPH))
    finished: list[int] = []
    while order:
        index = order.pop(0)
        sent = machine.formed(MicrobatchFormed(microbatch(index), Ref(2 * index), Ref(2 * index + 1)), 0.0)
        assert [to for to, _ in messages(sent, Forward)] == [PEER]
        machine.message(PEER, Accepted(microbatch(index), 0, FIRST_ATTEMPT), 0.0)
        actions = machine.message(PEER, Backward(microbatch(index), -1, FIRST_ATTEMPT), 0.5)
        finished.append(index)
        order += [action.microbatch.index for action in of_type(actions, FormMicrobatch)]
        assert len(order) <= 1 + WITHOUT_GRAPH
        assert machine.message(PEER, Backward(microbatch(index), -1, FIRST_ATTEMPT), 0.5) == [], "complete only once"
    assert finished == list(range(4 + WITHOUT_GRAPH))


def test_what_is_denied_is_never_dropped() -> None:
    machine = source()
    machine.open(opening(), 0.0)
    machine.formed(MicrobatchFormed(microbatch(0), Ref(1), Ref(2)), 0.0)
    machine.message(PEER, Denied(microbatch(0), 0, FIRST_ATTEMPT, "full"), 0.0)
    assert len(machine.dispatcher.waiting) == 1
    assert [to for to, _ in messages(machine.dispatcher.credit(PEER, 1.0), Forward)] == [PEER]


def test_what_was_formed_for_another_epoch_is_released() -> None:
    machine = source()
    machine.open(opening(epoch=Epoch(1, 0)), 0.0)
    assert released(machine.formed(MicrobatchFormed(microbatch(0), Ref(1), Ref(2)), 0.0)) == [Ref(1), Ref(2)]
    assert machine.message(PEER, Backward(microbatch(0), -1, FIRST_ATTEMPT), 0.0) == []


def test_a_trainer_outside_the_roster_forms_nothing() -> None:
    assert not of_type(source("stranger").open(opening(), 0.0), FormMicrobatch)


TAKEN_OVER = Attempt(reassignment=1)


def assigned() -> MicrobatchSource:
    """Trainer t0 of two, to which microbatches 1 and 3 of the dead t1 have fallen."""
    machine = source(microbatches=4)
    machine.open(opening(trainers=2, capacity=100), 0.0)
    formed = of_type(machine.assign(Assign(1, EPOCH, (1, 3), 1)), FormMicrobatch)
    assert [action.microbatch.index for action in formed] == [1, 3]
    return machine


def test_what_is_assigned_is_looked_for_before_it_is_sent() -> None:
    machine = assigned()
    assert (machine.indices(machine.epoch), machine.reassignment) == ((0, 1, 2, 3), 1)
    actions = machine.formed(MicrobatchFormed(microbatch(1), Ref(1), Ref(2)), 0.0)
    assert messages(actions, Adopt) == [(PEER, Adopt(microbatch(1), 0, TAKEN_OVER))]
    assert not messages(actions, Forward)
    actions = machine.message(PEER, Denied(microbatch(1), 0, TAKEN_OVER, "unknown"), 0.0)
    [(to, sent)] = messages(actions, Forward)
    assert (to, sent.attempt > TAKEN_OVER, sent.repair) == (PEER, True, True), "nobody holds it: it is sent anew"


def test_what_is_assigned_and_held_is_only_waited_for() -> None:
    machine = assigned()
    machine.formed(MicrobatchFormed(microbatch(3), Ref(1), Ref(2)), 0.0)
    assert machine.message(PEER, Accepted(microbatch(3), 0, TAKEN_OVER), 0.0) == []
    assert machine.dispatcher.flights.holder(microbatch(3)) == PEER
    machine.message(PEER, Backward(microbatch(3), -1, TAKEN_OVER), 0.0)
    assert machine.dispatcher.flights.entries[microbatch(3)].returned


def test_what_is_assigned_twice_is_formed_once_and_an_own_one_keeps_its_attempt() -> None:
    machine = assigned()
    assert not of_type(machine.assign(Assign(2, EPOCH, (0, 1), 2)), FormMicrobatch)
    assert machine.reassignment == 2
    own = messages(machine.formed(MicrobatchFormed(microbatch(0), Ref(1), Ref(2)), 0.0), Forward)
    assert [(to, message.attempt, message.repair) for to, message in own] == [(PEER, FIRST_ATTEMPT, False)]


def test_what_was_assigned_ends_with_its_epoch() -> None:
    machine = assigned()
    machine.open(opening(trainers=2, capacity=100, epoch=Epoch(1, 0)), 0.0)
    assert (machine.indices(machine.epoch), machine.reassignment) == ((0, 2), 0)


def test_the_other_trainers_are_senders_too() -> None:
    machine = source()
    machine.open(opening(trainers=3), 0.0)
    assert machine.dispatcher.senders == 3
    machine.trainer_gone()
    assert machine.dispatcher.senders == 2


def test_fewer_trainers_have_more_under_way_each() -> None:
    machine = source(microbatches=48)
    formed = of_type(machine.open(opening(trainers=2, capacity=1), 0.0), FormMicrobatch)
    order = [action.microbatch.index for action in formed]
    half = 1 + WITHOUT_GRAPH // 2
    assert (order, machine.window) == (list(range(0, 2 * half, 2)), half)
    formed = of_type(machine.trainer_gone(), FormMicrobatch)
    assert [action.microbatch.index for action in formed] == list(range(2 * half, 2 * WITHOUT_GRAPH + 2, 2))
    assert machine.window == 1 + WITHOUT_GRAPH
