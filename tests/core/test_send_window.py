"""The send window: where tensors take long, no more are sent than keep the links busy, and the rest is routed late."""

from __future__ import annotations

import pytest

from swarmflow.core.pipeline import lateness, offers
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.send_window import TENSORS_MIN, WINDOW_S
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.messages import Accepted, Forward, ReserveSlot, SlotReserved
from swarmflow.core.protocol.types import FIRST_ATTEMPT, ProcessId, Ref
from swarmflow.core.routing.link_estimates import LinkEstimates
from swarmflow.core.routing.prober import Prober
from swarmflow.core.routing.shortest import Shortest
from tests.core.samples import EPOCH, messages, microbatch, process

A, B, C = process("a"), process("b"), process("c")
TENSOR_BYTES = 1000
BODIES = (Ref(1, TENSOR_BYTES), Ref(2, 8))


def dispatcher(
    tensor_s: float, boundary_bytes: int = TENSOR_BYTES, shares: dict[ProcessId, int] | None = None
) -> Dispatcher:
    """To two peers whose links take so long for a tensor."""
    box = Dispatcher(1, Shortest("x"), prober=Prober(boundary_bytes))
    box.open(EPOCH, (A, B), shares)
    for peer in (A, B):
        box.router.links.record_probe(peer, TENSOR_BYTES, tensor_s, 0.0)
    return box


def offer(box: Dispatcher, count: int) -> list[ProcessId]:
    """Offer so many at once; return to whom they are sent."""
    actions: list[Action] = []
    for index in range(count):
        actions += box.offer(microbatch(index), BODIES, 0.0)
    return [to for to, _ in messages(actions, Forward)]


def test_slow_tensors_wait_for_those_before_them() -> None:
    box = dispatcher(tensor_s=10.0)
    sent = offer(box, 6)
    assert len(sent) == TENSORS_MIN
    assert len(box.waiting) == 6 - TENSORS_MIN
    assert messages(lateness.tick(box, 9.0), Forward) == []
    box.accepted(sent[0], Accepted(microbatch(0), 1, FIRST_ATTEMPT), 10.0)
    assert len(messages(lateness.tick(box, 10.0), Forward)) == 1


def test_a_question_for_a_slot_takes_a_place_in_the_window() -> None:
    box = dispatcher(tensor_s=10.0, shares={A: 0, B: 0})
    actions = [action for index in range(6) for action in box.offer(microbatch(index), BODIES, 0.0)]
    asked = messages(actions, ReserveSlot)
    assert (messages(actions, Forward), [question.microbatch.index for _, question in asked]) == ([], [0, 0])
    for number, (to, question) in enumerate(asked):
        answer = SlotReserved(question.microbatch, 1, question.attempt, free=8)
        actions = offers.reserved(box, to, answer, 0.1)
        assert bool(messages(actions, Forward)) == (number == 1), "once both have answered"
    others = {question.microbatch.index for _, question in messages(actions, ReserveSlot)}
    assert others == set(range(1, TENSORS_MIN))
    assert len(box.waiting) == 6 - TENSORS_MIN


def test_who_gets_a_microbatch_is_decided_when_its_turn_comes() -> None:
    box = dispatcher(tensor_s=10.0)
    sent = offer(box, TENSORS_MIN + 1)
    # The one that acknowledges has much to do by now; the other one is asked for nothing.
    box.accepted(sent[0], Accepted(microbatch(0), 1, FIRST_ATTEMPT, work_s=1000.0), 10.0)
    [(to, _)] = messages(lateness.tick(box, 10.0), Forward)
    assert to != sent[0]


@pytest.mark.parametrize(("tensor_s", "boundary_bytes"), [(WINDOW_S / 20, TENSOR_BYTES), (10.0, 0)])
def test_fast_tensors_and_token_ids_do_not_wait(tensor_s: float, boundary_bytes: int) -> None:
    assert len(offer(dispatcher(tensor_s, boundary_bytes), 20)) == 20


def test_a_lost_acknowledgement_stops_nothing() -> None:
    box = dispatcher(tensor_s=10.0)
    sent = offer(box, TENSORS_MIN + 2)
    box.routed(sent[0], microbatch(0), FIRST_ATTEMPT, C, 11.0)
    assert len(messages(lateness.tick(box, 11.0), Forward)) == 1
    assert box.returned(sent[1], microbatch(1), FIRST_ATTEMPT, 12.0)
    assert len(messages(lateness.tick(box, 12.0), Forward)) == 1


def test_what_a_dead_peer_was_sent_leaves_the_window() -> None:
    box = dispatcher(tensor_s=10.0)
    sent = offer(box, TENSORS_MIN + 2)
    dead = sent[0]
    actions = lateness.gone(box, dead, 1.0) + lateness.tick(box, 1.0)
    assert len(messages(actions, Forward)) == sent.count(dead)
    assert dead not in {to for to, _ in messages(actions, Forward)}


def test_sending_takes_what_passes_between_two_acknowledgements() -> None:
    links = LinkEstimates()
    assert links.sending_s == 0.0
    links.record_transfer(A, TENSOR_BYTES, 8.0, 8.0, direct=True)
    assert links.sending_s == 8.0
    for number in range(1, 60):  # two paths that share no link
        links.record_transfer(A if number % 2 else B, TENSOR_BYTES, 8.0, 8.0 + 4.0 * number, direct=True)
    assert links.sending_s == pytest.approx(4.0, rel=0.02)
