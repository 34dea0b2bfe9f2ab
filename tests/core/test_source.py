"""The source: each microbatch of a step is formed by one trainer, and no more at a time than the stages hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.actions import FormMicrobatch
from swarmflow.core.events import MicrobatchFormed
from swarmflow.core.iwrr import Iwrr
from swarmflow.core.messages import Accepted, Backward, Denied, Forward, Open
from swarmflow.core.outbox import Outbox
from swarmflow.core.source import Source
from swarmflow.core.types import Epoch, Ref, Roster
from tests.core.samples import EPOCH, member, messages, microbatch, of_type, process, released

PEER = process("p")


def source(name: str = "t0", microbatches: int = 8) -> Source:
    return Source(process(name), microbatches, Outbox(0, Iwrr()))


def opening(trainers: int = 1, capacity: int = 2, epoch: Epoch = EPOCH) -> Open:
    feeders = tuple(member(f"t{number}", -1) for number in range(trainers))
    return Open(1, epoch, Roster(((member("p", 0, capacity),), (member("q", 1, 100),)), feeders), feeders[0].process)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 20))
def test_the_trainers_share_a_step_without_gap_or_overlap(trainers: int, microbatches: int) -> None:
    formed: list[int] = []
    for number in range(trainers):
        machine = source(f"t{number}", microbatches)
        actions = machine.open(opening(trainers, capacity=1000))
        formed += [action.microbatch.index for action in of_type(actions, FormMicrobatch)]
    assert sorted(formed) == list(range(microbatches))


def test_no_more_are_under_way_than_the_narrowest_stage_holds() -> None:
    machine = source(microbatches=5)
    order = [action.microbatch.index for action in of_type(machine.open(opening()), FormMicrobatch)]
    assert order == [0, 1]
    finished: list[int] = []
    while order:
        index = order.pop(0)
        sent = machine.formed(MicrobatchFormed(microbatch(index), Ref(2 * index), Ref(2 * index + 1)), 0.0)
        assert [to for to, _ in messages(sent, Forward)] == [PEER]
        machine.message(PEER, Accepted(microbatch(index), 0, 0), 0.0)
        actions = machine.message(PEER, Backward(microbatch(index), -1, 0), 1.0)
        finished.append(index)
        order += [action.microbatch.index for action in of_type(actions, FormMicrobatch)]
        assert len(order) <= 2
        assert machine.message(PEER, Backward(microbatch(index), -1, 0), 1.0) == [], "complete only once"
    assert finished == [0, 1, 2, 3, 4]


def test_what_is_denied_is_never_dropped() -> None:
    machine = source()
    machine.open(opening())
    machine.formed(MicrobatchFormed(microbatch(0), Ref(1), Ref(2)), 0.0)
    machine.message(PEER, Denied(microbatch(0), 0, 0, "full"), 0.0)
    assert machine.outbox.waiting == 1
    assert [to for to, _ in messages(machine.outbox.room(PEER, 1.0), Forward)] == [PEER]


def test_what_was_formed_for_another_epoch_is_released() -> None:
    machine = source()
    machine.open(opening(epoch=Epoch(1, 0)))
    assert released(machine.formed(MicrobatchFormed(microbatch(0), Ref(1), Ref(2)), 0.0)) == [Ref(1), Ref(2)]
    assert machine.message(PEER, Backward(microbatch(0), -1, 0), 0.0) == []


def test_a_trainer_outside_the_roster_forms_nothing() -> None:
    assert not of_type(source("stranger").open(opening()), FormMicrobatch)
