"""A holder that computes is late by what it has to compute first and by what passes take, as far as that is known."""

from __future__ import annotations

import pytest

from swarmflow.core.pipeline import lateness
from swarmflow.core.pipeline.dispatcher import LATE_FACTOR, QUEUE_MAX, Dispatcher
from swarmflow.core.pipeline.lateness import ASK_AFTER_S, GRADIENT_WAITS_MAX
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.messages import Accepted, Adopt, Cancel, Forward, ReserveSlot
from swarmflow.core.protocol.types import FIRST_ATTEMPT, ProcessId
from tests.core.dispatching import BODIES, FIRST_S, A, B, C, dispatcher, sent_to
from tests.core.samples import messages, microbatch


def accepted(box: Dispatcher, holder: ProcessId, index: int, queued: int, now: float) -> None:
    assert answered(box, holder, index, queued, now) == []


def answered(box: Dispatcher, holder: ProcessId, index: int, queued: int, now: float) -> list[ProcessId]:
    """Return to whom a microbatch is sent when its holder says that it has so many passes to compute."""
    return sent_to(lateness.accepted(box, holder, Accepted(microbatch(index), 1, FIRST_ATTEMPT, queued=queued), now))


def given(box: Dispatcher, index: int, queued: int, now: float) -> ProcessId:
    """Send a microbatch to a peer that has so many passes to compute with it."""
    [holder] = sent_to(box.offer(microbatch(index), BODIES, now))
    accepted(box, holder, index, queued, now)
    return holder


def passed_on(box: Dispatcher, holder: ProcessId, index: int, now: float) -> None:
    box.routed(holder, microbatch(index), FIRST_ATTEMPT, C, now)
    assert box.returned(holder, microbatch(index), FIRST_ATTEMPT, now)


def measured(pass_s: float) -> Dispatcher:
    """A pass takes so long, and is all that the one microbatch took."""
    box = dispatcher(A, B)
    passed_on(box, given(box, 0, queued=1, now=0.0), 0, pass_s)
    return box


def other_than(holder: ProcessId) -> ProcessId:
    return B if holder == A else A


def asked_of(actions: list[Action]) -> list[ProcessId]:
    """Return who is asked whether it has a microbatch."""
    return [to for to, _ in messages(actions, Adopt)]


def test_as_long_as_no_peer_has_passed_anything_on_who_answers_has_time() -> None:
    box = dispatcher(A, B)
    holder = given(box, 0, queued=8, now=0.0)
    assert lateness.tick(box, FIRST_S - 0.1) == []
    for at_s in (FIRST_S, 2 * FIRST_S):
        assert asked_of(lateness.tick(box, at_s)) == [holder]
        accepted(box, holder, 0, 8, at_s + 1.0)
    passed_on(box, holder, 0, 400.0)
    assert box.router.links.any_pass_s == 50.0, "of eight in 400 s; that it was asked changes nothing"


@pytest.mark.parametrize("repair", [False, True])
def test_a_connection_may_break_a_thousand_times(repair: bool) -> None:
    box, now = dispatcher(A), 0.0
    box.offer(microbatch(0), BODIES, now, repair=repair)
    for _ in range(1100):
        lateness.on_connection_lost(box, A, now)
        lateness.tick(box, now := now + ASK_AFTER_S)
    assert lateness.next_deadline(box) is not None


def test_who_does_not_answer_is_late() -> None:
    box = dispatcher(A, B)
    holder = given(box, 0, queued=1, now=0.0)
    assert asked_of(lateness.tick(box, FIRST_S)) == [holder]
    assert lateness.tick(box, FIRST_S + box.late_min_s - 0.1) == []
    assert sent_to(lateness.tick(box, FIRST_S + box.late_min_s)) == [other_than(holder)]


def test_who_has_not_even_taken_it_is_not_asked() -> None:
    box = dispatcher(A, B)
    [holder] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    assert sent_to(lateness.tick(box, FIRST_S)) == [other_than(holder)]


def test_what_has_to_be_computed_first_counts() -> None:
    box = measured(3.0)
    holder, late_s = given(box, 1, queued=8, now=10.0), 10.0 + LATE_FACTOR * 3.0 * 8
    assert lateness.tick(box, late_s - 0.1) == []
    assert asked_of(lateness.tick(box, late_s)) == [holder]
    assert answered(box, holder, 1, 4, late_s + 1.0) == [other_than(holder)], "it is slow, and has not computed it yet"


def test_who_waits_for_the_next_stage_has_computed_it_and_is_given_time_thrice() -> None:
    box = measured(3.0)
    holder, least_s = given(box, 1, queued=1, now=10.0), LATE_FACTOR * 3.0
    for factor in (1, 2, 4):
        assert asked_of(lateness.tick(box, 10.0 + factor * least_s)) == [holder]
        accepted(box, holder, 1, 0, 10.0 + factor * least_s)
    assert asked_of(lateness.tick(box, 10.0 + 8 * least_s)) == [holder]
    assert answered(box, holder, 1, 0, 10.0 + 8 * least_s) == [other_than(holder)]


def test_who_says_that_it_has_more_to_compute_than_can_be_is_given_no_more_time() -> None:
    box = measured(3.0)
    holder = given(box, 1, queued=1_000_000, now=10.0)
    assert asked_of(lateness.tick(box, 9.9 + LATE_FACTOR * 3.0 * QUEUE_MAX)) == []
    assert asked_of(lateness.tick(box, 10.0 + LATE_FACTOR * 3.0 * QUEUE_MAX)) == [holder]


def test_what_others_take_counts_from_the_moment_that_it_is_known() -> None:
    box = dispatcher(A, B)
    slow, fast = given(box, 0, queued=1, now=0.0), given(box, 1, queued=1, now=0.0)
    assert {slow, fast} == {A, B}
    passed_on(box, fast, 1, 2.0)
    lateness.tick(box, FIRST_S)
    assert answered(box, slow, 0, 1, FIRST_S) == [fast], "ten times as slow is late"


def test_who_only_says_to_have_passed_it_on_loses_its_own_hop_in_the_end() -> None:
    box, now = measured(1.5), 10.0
    holder = given(box, 1, queued=1, now=now)
    box.routed(holder, microbatch(1), FIRST_ATTEMPT, C, now)
    for _ in range(GRADIENT_WAITS_MAX):
        now = lateness.next_deadline(box) or now
        assert asked_of(lateness.tick(box, now)) == [holder]
        accepted(box, holder, 1, 0, now)
    now = lateness.next_deadline(box) or now
    assert now - 10.0 > 127 * box.late_min_s
    actions = lateness.tick(box, now)
    assert [to for to, _ in messages(actions, Cancel)] == [holder]
    assert {(to, repair.held_by) for to, repair in messages(actions, Forward)} == {(other_than(holder), C)}


def test_who_was_only_asked_for_a_slot_has_passed_nothing_on() -> None:
    box = dispatcher(A, B, shares={A: 0, B: 0})
    [(holder, _), *_] = messages(box.offer(microbatch(0), BODIES, 0.0), ReserveSlot)
    box.routed(holder, microbatch(0), FIRST_ATTEMPT, C, 1.0)
    assert box.router.links.response_s(holder) is None
