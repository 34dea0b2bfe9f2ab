"""Ordered delivery: each message is handled once and in order, and who has forgotten a neighbour is noticed."""

from __future__ import annotations

from random import Random

import pytest

from swarmflow.core.protocol.messages.gwtf import InOrder, InOrderAck
from swarmflow.core.routing.flow.in_order import ACK_TIMEOUT_ROUNDS, QUEUE_MAX, ArrivalOrder, OrderedDelivery
from swarmflow.core.routing.flow.node_types import FlowSend
from tests.core.samples import process

A, B = process("a"), process("b")


def sent(delivery: OrderedDelivery, content: object, now: float) -> InOrder:
    send = delivery.wrap(FlowSend(B, content), now)
    assert isinstance(send.message, InOrder)
    return send.message


def acknowledgement(delivery: OrderedDelivery, now: float) -> InOrderAck:
    [send] = delivery.tick(now)
    assert isinstance(send.message, InOrderAck)
    return send.message


@pytest.mark.parametrize("seed", range(5))
def test_each_message_is_handled_once_and_in_order_whatever_is_lost(seed: int) -> None:
    random, sender, receiver = Random(seed), OrderedDelivery(1.0), OrderedDelivery(1.0)
    handled = []
    for now in range(2000):
        sends = sender.tick(float(now))
        if now < 100:
            sends.append(sender.wrap(FlowSend(B, now), float(now)))
        arriving = [send.message for send in sends if random.random() < 0.7]
        random.shuffle(arriving)
        handled += [each.message for each in arriving if receiver.arrived(A, each) is ArrivalOrder.NEXT]
        for ack in receiver.tick(float(now)):
            assert random.random() < 0.3 or sender.acknowledged(B, ack.message, float(now))
    assert handled == [*range(100)]
    assert not sender.busy
    assert not receiver.busy


def test_a_message_is_repeated_after_longer_and_longer_times() -> None:
    sender = OrderedDelivery(1.0)
    sent(sender, "content", 0.0)
    repeated = [now for now in range(40) if sender.tick(float(now))]
    assert repeated == [ACK_TIMEOUT_ROUNDS, 3 * ACK_TIMEOUT_ROUNDS, 7 * ACK_TIMEOUT_ROUNDS]


def test_a_queue_of_too_many_messages_is_full() -> None:
    sender = OrderedDelivery(1.0)
    for number in range(QUEUE_MAX):
        assert not sender.is_full(B)
        sender.wrap(FlowSend(B, number), 0.0)
    assert sender.is_full(B)


def test_a_receiver_notices_that_the_sender_has_forgotten_it() -> None:
    sender, receiver = OrderedDelivery(1.0), OrderedDelivery(1.0)
    assert receiver.arrived(A, sent(sender, 1, 0.0)) is ArrivalOrder.NEXT
    again = OrderedDelivery(1.0)
    assert receiver.arrived(A, sent(again, 1, 5.0)) is ArrivalOrder.RESTART
    assert receiver.arrived(A, sent(sender, 2, 6.0)) is ArrivalOrder.OTHER, "of the session before"
    assert receiver.arrived(A, sent(again, 2, 7.0)) is ArrivalOrder.NEXT


def test_a_receiver_that_has_never_had_a_message_notices_it_too() -> None:
    other, receiver = OrderedDelivery(1.0), OrderedDelivery(1.0)
    mine = receiver.wrap(FlowSend(A, "mine"), 0.0)
    assert other.arrived(B, mine.message) is ArrivalOrder.NEXT
    assert receiver.acknowledged(A, acknowledgement(other, 1.0), 1.0)
    again = OrderedDelivery(1.0)
    assert receiver.arrived(A, sent(again, 1, 5.0)) is ArrivalOrder.RESTART


def test_a_sender_notices_that_the_receiver_has_forgotten_it() -> None:
    sender, receiver = OrderedDelivery(1.0), OrderedDelivery(1.0)
    receiver.arrived(A, sent(sender, 1, 0.0))
    assert sender.acknowledged(B, acknowledgement(receiver, 1.0), 1.0)
    again = OrderedDelivery(1.0)
    assert again.arrived(A, sent(sender, 2, 5.0)) is ArrivalOrder.OTHER
    assert not sender.acknowledged(B, acknowledgement(again, 6.0), 6.0)


def test_the_answer_to_a_new_session_is_no_reason_to_begin_another_one() -> None:
    sender, receiver = OrderedDelivery(1.0), OrderedDelivery(1.0)
    receiver.arrived(A, sent(sender, 1, 0.0))
    answer = receiver.wrap(FlowSend(A, "answer"), 0.0)
    assert sender.arrived(B, answer.message) is ArrivalOrder.NEXT
    sender.forget(B)
    assert receiver.arrived(A, sent(sender, 1, 5.0)) is ArrivalOrder.RESTART
    receiver.forget(A, begun=True)
    answer = receiver.wrap(FlowSend(A, "answer"), 5.0)
    assert sender.arrived(B, answer.message) is ArrivalOrder.NEXT
