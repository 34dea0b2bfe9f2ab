"""Who is asked for a slot for a microbatch, how long answers are awaited, and who gets it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.core.pipeline import lateness, offers
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.next_stage import ASK_MORE_S, ASK_S
from swarmflow.core.pipeline.offers import WAIT
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.messages import Accepted, Cancel, Denied, Forward, ReserveSlot, SlotReserved
from swarmflow.core.protocol.types import FIRST_ATTEMPT, ProcessId, Ref
from swarmflow.core.routing.shortest import Shortest
from tests.core.samples import EPOCH, REPAIR, messages, microbatch, process

PEERS = tuple(process(f"p{number}") for number in range(6))
BODIES = (Ref(1, 100), Ref(2, 8))
NOW_S = 100.0
BEYOND = process("beyond")


def asked(response_s: float, tensor_s: float = 1.0) -> tuple[Dispatcher, list[ProcessId]]:
    """Six like peers are known, and a microbatch has come; who was asked for a slot."""
    box = Dispatcher(1, Shortest("x"))
    box.open(EPOCH, PEERS, {})
    for peer in PEERS:
        box.router.links.record_transfer(peer, 100, tensor_s, NOW_S, direct=False)
        box.router.links.record_response(peer, response_s, NOW_S)
        box.router.refresh(peer)
    return box, [to for to, _ in messages(box.offer(microbatch(0), BODIES, NOW_S), ReserveSlot)]


def reserve(box: Dispatcher, peer: ProcessId, work_s: float, now: float = NOW_S + 0.1) -> list[Action]:
    return offers.reserved(box, peer, SlotReserved(microbatch(0), 1, FIRST_ATTEMPT, work_s=work_s, free=1), now)


def sent_to(actions: list[Action]) -> list[ProcessId]:
    return [to for to, _ in messages(actions, Forward)]


@pytest.mark.parametrize(("response_s", "questions"), [(ASK_S, 2), (0.9 * ASK_MORE_S, 2), (ASK_MORE_S, 4)])
def test_where_peers_take_very_long_more_of_them_are_asked(response_s: float, questions: int) -> None:
    _, peers = asked(response_s)
    assert len(set(peers)) == questions == len(peers)


def test_of_all_that_are_asked_the_one_that_returns_it_first_gets_it() -> None:
    box, peers = asked(ASK_MORE_S)
    for peer, work_s in zip(peers[:3], (9.0, 2.0, 5.0), strict=True):
        assert reserve(box, peer, work_s) == []
    actions = reserve(box, peers[3], 7.0)
    assert sent_to(actions) == [peers[1]]
    assert {to for to, _ in messages(actions, Cancel)} == {*peers} - {peers[1]}


@pytest.mark.parametrize("tensor_s", [1.0, 100.0])
def test_who_is_far_away_is_waited_for_where_that_is_little_beside_a_tensor(tensor_s: float) -> None:
    box, (near, far) = asked(ASK_S, tensor_s)
    assert reserve(box, near, 3.0) == []
    until_s = NOW_S + 0.1 + max(0.1, WAIT * tensor_s)
    assert lateness.next_deadline(box) == pytest.approx(until_s)
    assert sent_to(lateness.tick(box, until_s - 0.01)) == []
    actions = lateness.tick(box, until_s)
    assert (sent_to(actions), [to for to, _ in messages(actions, Cancel)]) == ([near], [far])
    assert sent_to(reserve(box, far, 0.0, until_s)) == [], "it is late"


def test_later_answers_do_not_put_the_end_off() -> None:
    box, peers = asked(ASK_MORE_S)
    reserve(box, peers[0], 3.0)
    until_s = lateness.next_deadline(box)
    reserve(box, peers[1], 2.0, NOW_S + 0.15)
    assert lateness.next_deadline(box) == until_s


def test_where_the_only_answer_counts_no_more_the_others_have_their_time_again() -> None:
    box, peers = asked(ASK_MORE_S)
    reserve(box, peers[0], 3.0)
    lateness.gone(box, peers[0], NOW_S + 0.15)
    assert lateness.tick(box, NOW_S + 0.2) == []
    assert lateness.next_deadline(box) == NOW_S + 0.15 + box.late_min_s
    for peer in peers[1:3]:
        assert reserve(box, peer, 1.0) == []
    assert sent_to(reserve(box, peers[3], 0.0)) == [peers[3]]


def test_who_is_asked_again_answers_the_later_question() -> None:
    """Its late answer to the first one is no slot for the second."""
    box, peers = asked(ASK_S)
    actions = lateness.tick(box, NOW_S + box.late_min_s)
    assert [to for to, _ in messages(actions, Cancel)] == peers
    [first, _] = messages(actions, ReserveSlot)
    assert first[1].attempt != FIRST_ATTEMPT
    late = reserve(box, peers[0], 0.0, NOW_S + box.late_min_s + 0.1)
    assert [to for to, _ in messages(late, Cancel)] == [peers[0]]
    assert sent_to(late) == []


def test_all_that_would_be_done_too_late_are_left_alone() -> None:
    """Of those that offer a slot beside a fast peer that is full: else one after the other is asked again."""
    box, peers = asked(ASK_MORE_S)
    fast = next(peer for peer in PEERS if peer not in peers)
    box.router.links.record_work(fast, 0.0, 0.1, NOW_S)
    box.next_stage.availability.record_free(fast, 0, NOW_S)
    actions: list[Action] = []
    for peer in peers:
        told = SlotReserved(microbatch(0), 1, FIRST_ATTEMPT, work_s=50.0, each_s=10.0, free=1)
        actions += offers.reserved(box, peer, told, NOW_S + 0.1)
    assert sent_to(actions) == []
    assert {*peers, fast} <= box.next_stage.availability.full()
    assert not {to for to, _ in messages(actions, ReserveSlot)} & {*peers}


@given(st.permutations(range(4)), st.lists(st.sampled_from(["reserve", "full", "gone", "cut"]), min_size=4, max_size=4))
def test_the_best_of_those_that_have_a_slot_gets_it(order: list[int], answers: list[str]) -> None:
    box, peers = asked(ASK_MORE_S)
    actions: list[Action] = []
    for index, answer in zip(order, answers, strict=True):
        peer = peers[index]
        assert sent_to(actions) == [], "others have not answered yet"
        if answer == "reserve":
            actions += reserve(box, peer, float(index))
        elif answer == "full":
            actions += offers.denied(box, peer, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"), NOW_S + 0.1)
        elif answer == "gone":
            actions += lateness.gone(box, peer, NOW_S + 0.1)
        else:
            actions += lateness.on_connection_lost(box, peer, NOW_S + 0.1)
    having = [peers[index] for index, answer in zip(order, answers, strict=True) if answer == "reserve"]
    if not having:
        assert {to for to, _ in messages(actions, ReserveSlot)} == {*PEERS} - {*peers}, "the others are asked"
        return
    best = min(having, key=peers.index)
    assert sent_to(actions) == [best]
    assert {to for to, _ in messages(actions, Cancel)} == {*having} - {best}
    assert +box.next_stage.held == Counter([best])
    assert box.next_stage.availability.asked_out() <= {*peers} - {best}, "no question is open: some are full"


def repaired(*, settled: bool) -> tuple[Dispatcher, list[ReserveSlot], list[ProcessId]]:
    """A peer has passed a microbatch on, and dies. settled: its gradient has come; who is asked for a slot now."""
    box, (first, _) = asked(ASK_S)
    assert reserve(box, first, 1.0) == []
    [holder] = sent_to(lateness.tick(box, NOW_S + 1.0))
    box.accepted(holder, Accepted(microbatch(0), 1, FIRST_ATTEMPT), NOW_S + 2.0)
    box.routed(holder, microbatch(0), FIRST_ATTEMPT, BEYOND, NOW_S + 3.0)
    if settled:
        assert box.returned(holder, microbatch(0), FIRST_ATTEMPT, NOW_S + 4.0)
    questions = messages(lateness.gone(box, holder, NOW_S + 5.0), ReserveSlot)
    return box, [question for _, question in questions], [to for to, _ in questions]


@pytest.mark.parametrize(("settled", "chosen"), [(True, 1), (False, 0)])
def test_in_a_repair_the_way_of_the_gradient_counts_too(settled: bool, chosen: int) -> None:
    """Both tensors come at once. Then a gradient goes back that has not been here yet."""
    box, questions, peers = repaired(settled=settled)
    assert len(set(peers)) == 4, "however little peers take"
    assert {question.held_by for question in questions} == {BEYOND}
    to_s, from_s = (1.0, 3.5, 9.0, 9.0), (4.5, 3.5, 1.0, 9.0)
    for peer, tensor_s in zip(peers, to_s, strict=True):
        box.router.links.record_path(peer, tensor_s)
    actions: list[Action] = []
    for peer, gradient_s in zip(peers, from_s, strict=True):
        slot = SlotReserved(microbatch(0), 1, REPAIR, downstream_s=50.0, free=1, gradient_s=gradient_s)
        actions = offers.reserved(box, peer, slot, NOW_S + 5.1)
    assert {*sent_to(actions)} == {peers[chosen]}
