"""Which peers a sender asks for a slot, and what follows from their answers."""

from __future__ import annotations

from swarmflow.core.pipeline import lateness, offers
from swarmflow.core.pipeline.availability import ASKED
from swarmflow.core.pipeline.next_stage import ASK_S
from swarmflow.core.protocol.messages import (
    Accepted,
    Cancel,
    CreditReturned,
    Denied,
    Forward,
    ReserveSlot,
    SlotReserved,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt
from tests.core.dispatching import BODIES, FIRST_S, A, B, asked_of, dispatcher, sent_to
from tests.core.samples import messages, microbatch, process


def test_beyond_the_own_share_of_a_peers_room_it_is_asked_first() -> None:
    box = dispatcher(A, shares={A: 1})
    assert sent_to(box.offer(microbatch(0), BODIES, 0.0)) == [A]
    actions = box.offer(microbatch(1), BODIES, 0.0)
    assert (asked_of(actions), sent_to(actions)) == ([A], [])
    assert box.flights.holder(microbatch(1)) is None
    assert sent_to(offers.reserved(box, A, SlotReserved(microbatch(1), 1, FIRST_ATTEMPT), 1.0)) == [A]
    assert offers.reserved(box, A, SlotReserved(microbatch(1), 1, FIRST_ATTEMPT), 1.0) == [], "it was sent already"
    assert box.returned(A, microbatch(0), FIRST_ATTEMPT, ASK_S / 2)
    assert box.returned(A, microbatch(1), FIRST_ATTEMPT, 1.0 + ASK_S / 2)
    assert sent_to(box.offer(microbatch(2), BODIES, 3.0)) == [A], "what has come back takes up no room"


def test_where_peers_take_long_for_a_microbatch_all_are_asked() -> None:
    box = dispatcher(A, B, shares={A: 8, B: 8})
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    assert box.returned(first, microbatch(0), FIRST_ATTEMPT, 2 * ASK_S)
    actions = box.offer(microbatch(1), BODIES, 3.0)
    assert (bool(asked_of(actions)), sent_to(actions)) == (True, [])
    alone = dispatcher(A, shares={A: 8})
    alone.offer(microbatch(0), BODIES, 0.0)
    assert alone.returned(A, microbatch(0), FIRST_ATTEMPT, 2 * ASK_S)
    assert sent_to(alone.offer(microbatch(1), BODIES, 3.0)) == [A], "there is nothing to choose"


def test_what_was_sent_unasked_comes_before_what_is_asked_for() -> None:
    """A question overtakes a tensor: it must not take the room that the tensor needs."""
    box = dispatcher(A, shares={A: 1})
    box.offer(microbatch(0), BODIES, 0.0)
    assert messages(box.offer(microbatch(1), BODIES, 0.0), ReserveSlot) == [
        (A, ReserveSlot(microbatch(1), 1, FIRST_ATTEMPT, sent=1))
    ]
    offers.reserved(box, A, SlotReserved(microbatch(1), 1, FIRST_ATTEMPT, free=1), 1.0)
    box.accepted(A, Accepted(microbatch(0), 1, FIRST_ATTEMPT), 1.0)
    again = messages(box.offer(microbatch(2), BODIES, 1.0), ReserveSlot)
    assert again == [(A, ReserveSlot(microbatch(2), 1, FIRST_ATTEMPT, sent=1))], "it knows itself what has arrived"
    denied = dispatcher(A, shares={A: 1})
    denied.offer(microbatch(0), BODIES, 0.0)
    offers.denied(denied, A, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"), 1.0)
    assert denied.next_stage.unasked[A] == 1, "it has arrived, too"


def test_no_gradient_comes_of_a_microbatch_for_which_a_slot_was_asked_alone() -> None:
    box = dispatcher(A, shares={})
    box.offer(microbatch(0), BODIES, 0.0)
    assert not box.returned(A, microbatch(0), FIRST_ATTEMPT, 1.0)
    assert messages(offers.reserved(box, A, SlotReserved(microbatch(0), 1, FIRST_ATTEMPT), 1.0), Forward)
    assert box.returned(A, microbatch(0), FIRST_ATTEMPT, 2.0)


def test_who_is_full_when_asked_is_passed_over() -> None:
    box = dispatcher(A, B, shares={})
    [first] = asked_of(box.offer(microbatch(0), BODIES, 0.0))
    other = B if first == A else A
    assert asked_of(offers.denied(box, first, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"), 0.0)) == [other]
    assert offers.denied(box, other, Denied(microbatch(0), 1, Attempt(denials=1), "full"), 0.0) != []
    assert len(box.waiting) == 1
    assert asked_of(box.credit(first, 1.0)) == [first]


def test_a_peer_is_asked_for_one_slot_and_then_for_as_many_as_it_says_are_free() -> None:
    """Else it would be asked for as many as wait, also with each of its credits: most are denied."""
    box = dispatcher(A, shares={})
    assert [asked_of(box.offer(microbatch(index), BODIES, 0.0)) for index in range(9)] == [[A], *[[]] * 8]
    offers.denied(box, A, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"), 0.0)
    assert asked_of(box.credit(A, 1.0)) == [A]
    assert asked_of(offers.reserved(box, A, SlotReserved(microbatch(1), 1, FIRST_ATTEMPT, free=2), 1.0)) == [A, A]
    box.accepted(A, Accepted(microbatch(2), 1, FIRST_ATTEMPT), 1.0)
    assert asked_of(lateness.tick(box, 1.0)) == [], "it has not been sent that one: no answer"
    assert messages(box.forget(microbatch(3)), Cancel) != []
    assert asked_of(lateness.tick(box, 1.0)) == [A], "instead of what is not wanted any more"
    for index in (2, 4):
        assert asked_of(offers.denied(box, A, Denied(microbatch(index), 1, FIRST_ATTEMPT, "full"), 1.0)) == [], (
            "it is full again"
        )
    assert asked_of(box.credit(A, 2.0)) == [A]


def test_a_peer_that_has_given_its_last_slot_is_asked_after_its_credit() -> None:
    box = dispatcher(A, shares={A: 1})
    for index in range(3):
        box.offer(microbatch(index), BODIES, 0.0)
    assert asked_of(offers.reserved(box, A, SlotReserved(microbatch(1), 1, FIRST_ATTEMPT, free=0), 1.0)) == []
    assert asked_of(lateness.tick(box, 1.0)) == []
    assert asked_of(lateness.tick(box, 1.0 + box.next_stage.availability.pause_s)) == [A], "the credit may be lost"
    offers.reserved(box, A, SlotReserved(microbatch(2), 1, FIRST_ATTEMPT, free=0), 17.0)
    assert asked_of(box.offer(microbatch(3), BODIES, 17.0)) == []
    assert asked_of(box.credit(A, 18.0)) == [A]


def test_what_waits_for_the_answer_to_another_question_goes_on_when_that_is_denied() -> None:
    """The only peer wants to leave: it may be asked again at once, as there is no other."""
    box = dispatcher(A, shares={A: 1})
    box.offer(microbatch(0), BODIES, 0.0)
    assert asked_of(box.offer(microbatch(1), BODIES, 0.0)) == [A]
    assert offers.denied(box, A, Denied(microbatch(0), 1, FIRST_ATTEMPT, "draining"), 1.0) != []
    assert list(box.waiting) == [microbatch(0)], "the question for the other one is open"
    assert lateness.tick(box, 1.0) == []
    assert box.due_s > 2.0
    assert sent_to(offers.denied(box, A, Denied(microbatch(1), 1, FIRST_ATTEMPT, "draining"), 2.0)) == [A]
    assert box.due_s <= 2.0
    assert asked_of(lateness.tick(box, 2.0)) == [A]
    assert not box.waiting


def test_who_is_not_asked_any_more_since_it_is_late_may_be_asked_for_another_one() -> None:
    box = dispatcher(A, B, shares={})
    first, second = (asked_of(box.offer(microbatch(index), BODIES, 0.0)) for index in range(2))
    assert sorted(first + second) == [A, B]
    assert asked_of(box.offer(microbatch(2), BODIES, 0.0)) == []
    late = lateness.tick(box, box.late_min_s)
    assert sorted(asked_of(late)) == [A, B], "each for a microbatch that the other was asked for"


def test_room_that_nothing_waits_for_is_passed_on() -> None:
    """Else the peer would wait for this one, and others for the peer."""
    box = dispatcher(A, B, shares={})
    [first] = asked_of(box.offer(microbatch(0), BODIES, 0.0))
    [other] = asked_of(offers.denied(box, first, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"), 0.0))
    offers.reserved(box, other, SlotReserved(microbatch(0), 1, Attempt(denials=1)), 1.0)
    assert messages(box.credit(first, 2.0), CreditReturned) == [(first, CreditReturned(1))]


def test_in_a_large_stage_only_some_are_asked_before_one_waits() -> None:
    peers = [process(f"p{number:03}") for number in range(200)]
    box = dispatcher(*peers, shares={})
    actions, asked = box.offer(microbatch(0), BODIES, 0.0), 0
    while to := asked_of(actions):
        asked += 1
        actions = offers.denied(
            box, to[0], Denied(microbatch(0), 1, box.flights.entries[microbatch(0)].attempt, "full"), 0.0
        )
    assert asked == ASKED * 8, "four times log2 of 200"
    assert len(box.waiting) == 1


def test_the_death_of_who_was_only_asked_is_no_repair() -> None:
    box = dispatcher(A, B, shares={})
    [first] = asked_of(box.offer(microbatch(0), BODIES, 0.0))
    [(other, message)] = messages(lateness.gone(box, first, 0.0), ReserveSlot)
    assert (other != first, message.attempt) == (True, FIRST_ATTEMPT)
    [(_, sent)] = messages(offers.reserved(box, other, SlotReserved(microbatch(0), 1, FIRST_ATTEMPT), 1.0), Forward)
    assert not sent.repair


def test_room_that_is_not_kept_in_time_is_asked_for_elsewhere_or_again() -> None:
    box = dispatcher(A, B, shares={})
    [first] = asked_of(box.offer(microbatch(0), BODIES, 0.0))
    actions = lateness.tick(box, FIRST_S)
    assert messages(actions, Cancel) == [(first, Cancel(microbatch(0), 1, FIRST_ATTEMPT))]
    [other] = asked_of(actions)
    assert other != first
    late = messages(offers.reserved(box, first, SlotReserved(microbatch(0), 1, FIRST_ATTEMPT), FIRST_S), Cancel)
    assert late == [(first, Cancel(microbatch(0), 1, FIRST_ATTEMPT))], "it is not needed any more"
    lateness.gone(box, first, FIRST_S)
    assert asked_of(lateness.tick(box, 4 * FIRST_S)) == [other]


def test_room_reserved_for_an_attempt_that_is_over_is_given_back() -> None:
    box = dispatcher(A, shares={})
    assert asked_of(box.offer(microbatch(0), BODIES, 0.0)) == [A]
    assert asked_of(lateness.tick(box, FIRST_S)) == [A], "its answer is late, and it is the only one"
    offers.denied(box, A, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"), FIRST_S)  # the answer to the first question
    late = messages(offers.reserved(box, A, SlotReserved(microbatch(0), 1, FIRST_ATTEMPT), FIRST_S), Cancel)
    assert late == [(A, Cancel(microbatch(0), 1, FIRST_ATTEMPT))]


def test_what_is_forgotten_needs_no_room() -> None:
    box = dispatcher(A, shares={})
    box.offer(microbatch(0), BODIES, 0.0)
    assert messages(box.forget(microbatch(0)), Cancel) == [(A, Cancel(microbatch(0), 1, FIRST_ATTEMPT))]
