"""A microbatch waits for another peer where a free one would be done with it after everybody else."""

from __future__ import annotations

from collections import Counter

import pytest

from swarmflow.core.pipeline import lateness, offers
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.patience import AHEAD, LATELY, too_late_s
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.messages import Cancel, CreditReturned, Denied, Forward, ReserveSlot, SlotReserved
from swarmflow.core.protocol.types import FIRST_ATTEMPT, ProcessId, Ref
from swarmflow.core.routing.iwrr import Iwrr
from swarmflow.core.routing.router import Router
from swarmflow.core.routing.shortest import Shortest
from tests.core.samples import EPOCH, messages, microbatch, process

FAST, SLOW = process("fast"), process("slow")
FAST_S, SLOW_S = 0.3, 3.0
BODIES = (Ref(1, 100), Ref(2, 8))


def asked(router: Router | None = None, waiting: int = 0, mates: int = 0) -> tuple[Dispatcher, list[Action]]:
    """The fast peer has no slot, and the slow one is done with a microbatch before and this one in 6 s."""
    box = Dispatcher(1, router or Shortest("x"))
    box.open(EPOCH, (FAST, SLOW), {})
    box.senders = 1 + mates
    questions = messages(box.offer(microbatch(0), BODIES, 0.0), ReserveSlot)
    for index in range(waiting):
        box.offer(microbatch(1 + index), BODIES, 0.0)
    actions: list[Action] = []
    while questions:
        to, question = questions.pop(0)
        if to == FAST:
            denied = Denied(question.microbatch, 1, question.attempt, "full", 1.0, FAST_S)
            actions = offers.denied(box, FAST, denied, 0.1)
        else:
            reserved = SlotReserved(question.microbatch, 1, question.attempt, work_s=2 * SLOW_S, each_s=SLOW_S)
            actions = offers.reserved(box, SLOW, reserved, 0.1)
        questions += messages(actions, ReserveSlot)
    return box, actions


def asked_later(actions: list[Action]) -> list[ProcessId]:
    return [to for to, _ in messages(actions, ReserveSlot)]


def test_a_slow_peer_that_is_free_is_left_alone() -> None:
    box, actions = asked()
    assert messages(actions, Forward) == []
    assert [to for to, _ in messages(actions, Cancel)] == [SLOW]
    assert list(box.waiting) == [microbatch(0)]
    assert asked_later(box.credit(FAST, 1.0)) == [FAST]


def test_its_credit_does_not_have_it_asked_again_at_once() -> None:
    """The slot of the question that was taken back is free: it says so at once, over and over on a fast link."""
    box, _ = asked()
    assert messages(box.credit(SLOW, 0.2), CreditReturned) == [(SLOW, CreditReturned(1))]
    due_s = lateness.next_deadline(box)
    assert due_s is not None
    assert due_s > 1.0
    assert asked_later(lateness.tick(box, due_s)) == [SLOW]


@pytest.mark.parametrize("how", ["dead", "unreachable", "draining"])
def test_it_is_asked_at_once_where_the_faster_one_is_lost(how: str) -> None:
    box, _ = asked()
    box.credit(SLOW, 0.2)
    if how == "dead":
        actions = lateness.gone(box, FAST, 0.3)
    elif how == "unreachable":
        actions = lateness.on_connection_lost(box, FAST, 0.3) + lateness.tick(box, 0.3)
    else:
        [(_, question)] = messages(box.credit(FAST, 0.3), ReserveSlot)
        actions = offers.denied(box, FAST, Denied(question.microbatch, 1, question.attempt, "draining"), 0.4)
    assert asked_later(actions) == [SLOW]


def test_it_is_asked_again_once_it_would_be_soon_enough() -> None:
    box, _ = asked()
    due_s = lateness.next_deadline(box)
    assert due_s is not None
    assert 1.0 < due_s <= 2 * SLOW_S
    assert asked_later(lateness.tick(box, due_s)) == [SLOW]


def test_it_gets_its_share_of_much_work() -> None:
    """Of 20 that wait the two do 3.7 a second."""
    _, actions = asked(waiting=20)
    assert [to for to, _ in messages(actions, Forward)] == [SLOW]
    _, actions = asked(mates=19)
    assert [to for to, _ in messages(actions, Forward)] == [SLOW], "as much waits at each of the other senders"


@pytest.mark.parametrize("mates", [0, 1, 5])
def test_no_microbatch_waits_for_a_peer_that_is_hardly_better(mates: int) -> None:
    """Others wait for it too, and it takes theirs before."""
    box, _ = asked(mates=mates)
    alike_s = 1.0 + (AHEAD + 1.0) * FAST_S  # what the full one had to do, that of others, and this one
    share_s = (len(box.waiting) + 1) * (1 + mates) * FAST_S / 2  # of what waits in the stage the two do two at a time
    box.router.links.record_work(SLOW, alike_s - 0.1, FAST_S, 0.1)
    assert too_late_s(box, SLOW) < 0.0
    box.router.links.record_work(SLOW, alike_s + share_s - 0.1, FAST_S, 0.1)
    assert too_late_s(box, SLOW) < 0.0
    box.router.links.record_work(SLOW, alike_s + share_s + 0.1, FAST_S, 0.1)
    assert too_late_s(box, SLOW) == pytest.approx(0.1)


def test_who_is_near_does_not_get_all_before_those_farther_away_have_answered() -> None:
    """Three like peers, 8 microbatches, one sender; a question to one of them is answered at once, to others later."""
    near, far = process("near"), (process("far"), process("farther"))
    box = Dispatcher(1, Shortest("x"))
    box.open(EPOCH, (near, *far), {})
    for peer in (near, *far):
        box.router.links.record_work(peer, 0.0, SLOW_S, 0.0)
    given, questions = Counter[ProcessId](), list[tuple[ProcessId, ReserveSlot]]()

    def note(actions: list[Action]) -> None:
        questions.extend(messages(actions, ReserveSlot))
        given.update(to for to, _ in messages(actions, Forward))

    def answer(to: ProcessId, question: ReserveSlot, now: float) -> None:
        work_s = SLOW_S * (given[to] + 1)
        reserved = SlotReserved(question.microbatch, 1, question.attempt, free=8, work_s=work_s, each_s=SLOW_S)
        note(offers.reserved(box, to, reserved, now))

    for index in range(8):
        note(box.offer(microbatch(index), BODIES, 0.0))
    late: list[tuple[ProcessId, ReserveSlot]] = []
    for now in (0.01 * step for step in range(1, 100)):
        note(lateness.tick(box, now))
        while questions:
            to, question = questions.pop(0)
            if to == near:
                answer(to, question, now)
            else:
                late.append((to, question))
        if now > 0.3:
            while late:
                answer(*late.pop(0), now)
    assert given.total() == 8
    assert max(given.values()) <= 4


def test_a_router_that_decides_otherwise_is_not_overruled() -> None:
    _, actions = asked(Iwrr())
    assert [to for to, _ in messages(actions, Forward)] == [SLOW]


def test_nobody_waits_for_a_peer_that_tells_nothing() -> None:
    box = Dispatcher(1, Shortest("x"))
    box.open(EPOCH, (FAST, SLOW), {})
    actions = box.offer(microbatch(0), BODIES, 0.0)
    offers.denied(box, FAST, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"), 0.1)
    actions = offers.reserved(
        box, SLOW, SlotReserved(microbatch(0), 1, FIRST_ATTEMPT, work_s=2 * SLOW_S, each_s=SLOW_S), 0.1
    )
    assert [to for to, _ in messages(actions, Forward)] == [SLOW]


def test_what_was_told_long_ago_is_not_believed_any_more_where_others_give_work_too() -> None:
    later_s = 0.1 + 2 * LATELY * FAST_S
    alone, _ = asked()
    alone.router.links.record_work(SLOW, 2 * SLOW_S, SLOW_S, later_s)
    assert too_late_s(alone, SLOW) > 0.0
    box, _ = asked(mates=1)
    box.router.links.record_work(SLOW, 2 * SLOW_S, SLOW_S, later_s)
    assert too_late_s(box, SLOW) < 0.0
    box.router.links.record_work(FAST, 1.0, FAST_S, later_s)
    assert too_late_s(box, SLOW) > 0.0
