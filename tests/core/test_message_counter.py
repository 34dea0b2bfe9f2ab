"""A heartbeat tells how many messages there were: a link that has lost one is as bad as a broken one."""

from __future__ import annotations

from swarmflow.core.protocol.actions import Action, Forget, Send
from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.message_counter import MessageCounter
from swarmflow.core.protocol.messages import CreditAvailable, Heartbeat, LeaderHeartbeat, Message, Recalled
from swarmflow.core.protocol.types import NO_EPOCH, ProcessId, Ref
from tests.core.samples import microbatch, of_type, process

A, B, C = (process(name) for name in "abc")


def say(counter: MessageCounter, to: ProcessId, *said: Message) -> list[Message]:
    return [send.message for send in of_type(counter.sent([Send(to, message) for message in said]), Send)]


def hear(counter: MessageCounter, sender: ProcessId, *messages: Message) -> list[bool]:
    return [counter.received(Received(sender, message)) for message in messages]


def test_what_comes_whole_is_never_doubted() -> None:
    one, other = MessageCounter(A), MessageCounter(B)
    for _ in range(3):
        assert all(
            hear(
                other,
                A,
                *say(one, B, CreditAvailable(0), Heartbeat(), CreditAvailable(0), LeaderHeartbeat(1, NO_EPOCH)),
            )
        )


def test_a_message_that_is_missing_shows_at_the_next_heartbeat() -> None:
    one, other = MessageCounter(A), MessageCounter(B)
    room, _, beat = say(one, B, CreditAvailable(0), CreditAvailable(0), LeaderHeartbeat(1, NO_EPOCH))
    assert hear(other, A, room, beat) == [True, False]


def test_processes_are_told_apart_and_the_forgotten_begin_anew() -> None:
    one, other = MessageCounter(A), MessageCounter(B)
    say(one, C, CreditAvailable(0), CreditAvailable(0))
    assert hear(other, A, *say(one, B, Heartbeat())) == [True]
    say(one, B, CreditAvailable(0))
    forgotten: list[Action] = [Forget(A)]
    assert other.sent(forgotten) == forgotten
    one.sent([Forget(B)])
    assert hear(other, A, *say(one, B, Heartbeat())) == [True]


def test_what_the_sender_knows_to_be_lost_is_not_missed() -> None:
    one, other = MessageCounter(A), MessageCounter(B)
    say(one, B, CreditAvailable(0), CreditAvailable(0))
    one.lost(B)
    assert hear(other, A, *say(one, B, Heartbeat())) == [True]


def test_what_has_bodies_may_overtake_and_is_not_counted() -> None:
    one, other = MessageCounter(A), MessageCounter(B)
    tensor = Send(B, Recalled(microbatch(0), 0, gradient=True), (Ref(1),))
    assert one.sent([tensor]) == [tensor]
    assert hear(other, A, *say(one, B, Heartbeat())) == [True]
    assert other.received(Received(A, tensor.message, (Ref(2),)))
    assert hear(other, A, *say(one, B, Heartbeat())) == [True]


def test_what_a_process_says_to_itself_is_not_counted() -> None:
    words = MessageCounter(A)
    assert say(words, A, Heartbeat()) == [Heartbeat()]
    assert hear(words, A, Heartbeat(sent=7)) == [True]
