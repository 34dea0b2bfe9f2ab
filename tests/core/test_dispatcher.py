"""The dispatcher: every microbatch offered is in one living hand, or waits for something that will come."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.pipeline import lateness, offers, turnover
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.in_flight import FlightState
from swarmflow.core.protocol.actions import Release, Send
from swarmflow.core.protocol.messages import Accepted, Adopt, Denied, Forward, SlotReserved
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt
from swarmflow.core.routing.shortest import Shortest
from tests.core.dispatching import BODIES, FIRST_S, WAY_S, A, B, C, dispatcher, sent_to
from tests.core.measuring import transferred
from tests.core.samples import EPOCH, REPAIR, messages, microbatch, of_type, process


def test_what_is_offered_is_sent_with_its_bodies() -> None:
    actions = dispatcher(A).offer(microbatch(3), BODIES, now=0.0)
    [(to, message)] = messages(actions, Forward)
    assert to == A
    assert (message.microbatch, message.stage, message.repair, message.insist) == (microbatch(3), 1, False, False)


def test_a_full_peer_is_left_alone_until_it_has_room() -> None:
    box = dispatcher(A, B)
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    other = B if first == A else A
    assert sent_to(offers.denied(box, first, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"), 0.0)) == [other]
    assert sent_to(box.offer(microbatch(1), BODIES, 1.0)) == [other]
    assert sent_to(offers.denied(box, other, Denied(microbatch(1), 1, FIRST_ATTEMPT, "full"), 1.0)) == []
    assert len(box.waiting) == 1
    assert lateness.next_deadline(box) == box.next_stage.availability.pause_s
    assert sent_to(box.credit(first, 2.0)) == [first]
    assert len(box.waiting) == 0


def test_a_next_stage_is_hungry_where_it_is_done_with_its_queue_before_another_tensor_is_there() -> None:
    """Else a peer of little memory behind slow links would take one microbatch after the other."""
    box = dispatcher(A)
    assert box.next_stage.hungry(0.1), "nobody has told anything"
    for index in range(20):
        box.offer(microbatch(index), BODIES, float(index))
        box.accepted(A, Accepted(microbatch(index), 1, FIRST_ATTEMPT, queued=2), index + 0.5)
    assert box.next_stage.hungry(passes=4.0)
    assert not box.next_stage.hungry(passes=0.1)


def test_what_was_just_sent_there_does_not_wait_at_the_next_stage() -> None:
    """Else narrow stages before a wide one have a single microbatch on its way, and most of that has nothing to do."""
    box = dispatcher(A)
    box.offer(microbatch(0), BODIES, 0.0)
    box.accepted(A, Accepted(microbatch(0), 1, FIRST_ATTEMPT, queued=1), 0.5)
    assert box.next_stage.hungry(passes=0.1)
    box.offer(microbatch(1), BODIES, 1.0)
    box.accepted(A, Accepted(microbatch(1), 1, FIRST_ATTEMPT, queued=100), 1.5)
    assert not box.next_stage.hungry(passes=0.1)


def test_a_pause_ends_even_if_nobody_says_so() -> None:
    box = dispatcher(A)
    box.offer(microbatch(0), BODIES, 0.0)
    offers.denied(box, A, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"), 0.0)
    assert sent_to(lateness.tick(box, 14.9)) == []
    assert sent_to(lateness.tick(box, 15.0)) == [A]


def test_a_dead_peers_microbatches_go_to_another_as_repairs() -> None:
    box = dispatcher(A, B)
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    box.accepted(first, Accepted(microbatch(0), 1, FIRST_ATTEMPT), 0.0)
    box.routed(first, microbatch(0), FIRST_ATTEMPT, C, 1.0)
    announced, sent = of_type(lateness.gone(box, first, 2.0), Send)
    assert not announced.bodies
    assert (announced.to, announced.message) == (sent.to, sent.message), "its tensors follow"
    assert sent.bodies == BODIES
    to, message = sent.to, sent.message
    assert isinstance(message, Forward)
    assert to != first
    assert (message.attempt, message.repair, message.held_by) == (REPAIR, True, C)
    assert not box.returned(first, microbatch(0), FIRST_ATTEMPT, 3.0), "the dead one's answer counts no more"
    assert box.returned(to, microbatch(0), REPAIR, 3.0)
    assert not box.returned(to, microbatch(0), REPAIR, 3.0), "only the first gradient counts"


def test_a_gradient_that_has_returned_is_asked_for_again_only_if_a_ballot_has_taken_it_away() -> None:
    box = dispatcher(A, B)
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    assert box.returned(first, microbatch(0), FIRST_ATTEMPT, 1.0)
    orphan = Denied(microbatch(0), 1, FIRST_ATTEMPT, "orphan")
    for sender, denied in (
        (C, orphan),
        (first, replace(orphan, reason="unknown")),
        (first, replace(orphan, attempt=REPAIR)),
    ):
        assert offers.denied(box, sender, denied, 2.0) == []
    [(to, message)] = dict(messages(offers.denied(box, first, orphan, 2.0), Forward)).items()
    assert to != first, "who says so again and again does not get it again and again"
    assert (message.attempt, message.repair, message.settled) == (REPAIR, True, True)
    assert offers.denied(box, first, orphan, 2.0) == [], "it is on its way again"


def test_a_repair_asks_before_it_sends() -> None:
    box = dispatcher(A, B)
    actions = box.offer(microbatch(0), BODIES, 0.0, attempt=REPAIR, repair=True, hint=B)
    assert [to for to, _ in messages(actions, Adopt)] == [B]
    assert sent_to(actions) == []
    box.accepted(B, Accepted(microbatch(0), 1, REPAIR), 0.0)
    assert box.flights.holder(microbatch(0)) == B
    assert box.returned(B, microbatch(0), REPAIR, 1.0)


def test_a_repair_sends_only_when_nobody_has_it() -> None:
    box = dispatcher(A, B, C)
    box.offer(microbatch(0), BODIES, 0.0, attempt=REPAIR, repair=True, hint=B)
    asked = messages(offers.denied(box, B, Denied(microbatch(0), 1, REPAIR, "unknown"), 0.0), Adopt)
    assert [to for to, _ in asked] == [A, C], "the hint was wrong: the others are asked"
    attempt = asked[0][1].attempt
    assert offers.denied(box, A, Denied(microbatch(0), 1, attempt, "unknown"), 0.0) == []
    [(_, message)] = messages(lateness.gone(box, C, 0.0), Forward)
    assert message.attempt > attempt


def test_who_loses_what_it_has_passed_on_leaves_a_repair_above_all_later_attempts() -> None:
    box = dispatcher(A, B)
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    box.routed(first, microbatch(0), FIRST_ATTEMPT, C, 1.0)
    denied = offers.denied(box, first, Denied(microbatch(0), 1, FIRST_ATTEMPT, "invalid"), 2.0)
    _, (to, message) = messages(denied, Forward)
    assert to != first
    assert (message.attempt, message.repair, message.held_by) == (REPAIR, True, C)


def test_a_newer_attempt_elsewhere_is_overtaken_after_a_pause() -> None:
    """The chain of the newer one may be broken: an attempt that stays below it would wait for ever."""
    box = dispatcher(A)
    box.offer(microbatch(0), BODIES, 0.0)
    assert sent_to(offers.denied(box, A, Denied(microbatch(0), 1, FIRST_ATTEMPT, "stale"), 0.0)) == []
    [(_, message)] = messages(lateness.tick(box, box.next_stage.availability.pause_s), Forward)
    assert message.attempt == REPAIR


def test_the_last_ones_have_to_work_though_they_want_to_leave() -> None:
    box = dispatcher(A, B)
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    [second] = sent_to(offers.denied(box, first, Denied(microbatch(0), 1, FIRST_ATTEMPT, "draining"), 0.0))
    [(_, message)] = messages(
        offers.denied(box, second, Denied(microbatch(0), 1, Attempt(denials=1), "draining"), 0.0), Forward
    )
    assert message.insist


def test_what_waits_for_a_dead_peer_goes_to_one_that_wants_to_leave() -> None:
    """Nothing else would wake it: the full one is dead, and the other one was not full."""
    box = dispatcher(A, B)
    assert sent_to(box.offer(microbatch(0), BODIES, 0.0)) == [A]
    assert sent_to(offers.denied(box, A, Denied(microbatch(0), 1, FIRST_ATTEMPT, "draining"), 0.0)) == [B]
    assert sent_to(offers.denied(box, B, Denied(microbatch(0), 1, Attempt(denials=1), "full"), 0.0)) == []
    [(to, message)] = messages(lateness.gone(box, B, 1.0), Forward)
    assert (to, message.insist) == (A, True)


def test_the_only_one_is_asked_when_it_is_late_and_given_it_again_if_it_never_got_it() -> None:
    box = dispatcher(A)
    box.offer(microbatch(0), BODIES, 0.0)
    assert lateness.next_deadline(box) == FIRST_S
    assert lateness.tick(box, FIRST_S - 0.1) == []
    assert messages(lateness.tick(box, FIRST_S), Adopt) == [(A, Adopt(microbatch(0), 1, FIRST_ATTEMPT))]
    assert lateness.next_deadline(box) == 3 * FIRST_S, "it is asked again, later and later"
    offers.denied(box, A, Denied(microbatch(0), 1, FIRST_ATTEMPT, "unknown"), FIRST_S + 1)
    [(to, message)] = messages(lateness.tick(box, FIRST_S + 1 + box.next_stage.availability.pause_s), Forward)
    assert (to, message.repair) == (A, True), "perhaps it has passed it on and has forgotten it"


def test_a_gradient_that_does_not_come_is_asked_for() -> None:
    box = dispatcher(A, B)
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    box.routed(first, microbatch(0), FIRST_ATTEMPT, C, 3.0)
    assert lateness.next_deadline(box) == 33.0, "ten times the 3 s that it took"
    assert messages(lateness.tick(box, 33.0), Adopt) == [(first, Adopt(microbatch(0), 1, FIRST_ATTEMPT))]
    assert box.returned(first, microbatch(0), FIRST_ATTEMPT, 34.0)
    assert lateness.next_deadline(box) is None


def test_an_answer_that_does_not_come_is_asked_for_again() -> None:
    box = dispatcher(A, B)
    box.offer(microbatch(0), BODIES, 0.0, attempt=REPAIR, repair=True)
    offers.denied(box, A, Denied(microbatch(0), 1, REPAIR, "unknown"), 1.0)
    assert [to for to, _ in messages(lateness.tick(box, 15.0 + WAY_S), Adopt)] == [B]


def test_a_step_that_was_begun_ahead_tries_who_was_slow_once_again() -> None:
    box = Dispatcher(1, Shortest())
    box.open(EPOCH, (A, B))
    transferred(box.router, B, 20.0)
    transferred(box.router, A, 0.1, now=1e6)
    assert sent_to(box.offer(microbatch(0, EPOCH.following), BODIES, 1e6)) == [A]
    turnover.dispatch_on(box, EPOCH.following, (A, B), {}, (), 1e6)
    assert sent_to(box.offer(microbatch(1, EPOCH.following), BODIES, 1e6)) == [B]


def test_clearing_releases_all_bytes() -> None:
    box = dispatcher(A)
    box.offer(microbatch(0), BODIES, 0.0)
    assert box.flights.size_bytes == 108
    assert box.clear() == [Release(BODIES)]
    assert box.flights.size_bytes == 0


HAPPENS = ("offer", "repair", "accept", "deny", "drain", "room", "gone", "tick", "back")


@settings(max_examples=150)
@given(st.data())
def test_each_is_in_one_living_hand_or_will_be_tried_again(data: st.DataObject) -> None:
    peers = [process(f"p{number}") for number in range(data.draw(st.integers(1, 4)))]
    box = dispatcher(*peers, shares=data.draw(st.sampled_from((None, {}, dict.fromkeys(peers, 1)))))
    alive = set(peers)
    offered, now = 0, 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        now += 1.0
        match data.draw(st.sampled_from(HAPPENS)):
            case "offer" | "repair" as kind:
                box.offer(microbatch(offered), BODIES, now, repair=kind == "repair")
                offered += 1
            case "accept" | "deny" | "drain" as kind if box.flights.entries:
                entry = data.draw(st.sampled_from(list(box.flights.entries.values())))
                concerned = sorted(entry.asked) or ([entry.holder] if entry.holder else [])
                if concerned:
                    who = data.draw(st.sampled_from(concerned))
                    if kind == "accept":
                        box.accepted(who, Accepted(entry.microbatch, 1, entry.attempt), now)
                    else:
                        reason = "unknown" if entry.asked else "full" if kind == "deny" else "draining"
                        offers.denied(box, who, Denied(entry.microbatch, 1, entry.attempt, reason), now)
            case "back" if box.flights.entries:
                entry = data.draw(st.sampled_from(list(box.flights.entries.values())))
                if entry.holder is not None:
                    offers.reserved(box, entry.holder, SlotReserved(entry.microbatch, 1, entry.attempt), now)
                    box.returned(entry.holder, entry.microbatch, entry.attempt, now)
            case "room":
                box.credit(data.draw(st.sampled_from(peers)), now)
            case "gone" if len(alive) > 1:
                victim = data.draw(st.sampled_from(sorted(alive)))
                alive.discard(victim)
                lateness.gone(box, victim, now)
            case "tick":
                lateness.tick(box, now)
        if box.due_s <= now:  # as after each event
            lateness.tick(box, now)
        for index in range(offered):
            entry = box.flights.entries[microbatch(index)]
            if entry.asked:
                assert entry.holder is None
                assert entry.asked <= alive
            elif entry.holder is not None:
                assert entry.holder in alive
            else:
                assert lateness.next_deadline(box) is not None, "it waits, and nothing will wake it"
        held = Counter(entry.holder for entry in box.flights.entries.values() if entry.held)
        assert held == +box.next_stage.held
        unanswered = Counter(e.holder for e in box.flights.entries.values() if e.state is FlightState.UNREQUESTED)
        assert unanswered <= box.next_stage.unasked
