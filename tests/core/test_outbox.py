"""The outbox: every microbatch offered is in one living hand, or waits for something that will come."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.actions import Action, Release
from swarmflow.core.iwrr import Iwrr
from swarmflow.core.messages import Adopt, Forward
from swarmflow.core.outbox import REPAIR, Outbox
from swarmflow.core.types import ProcessId, Ref
from tests.core.samples import messages, microbatch, process

A, B, C = process("a"), process("b"), process("c")
BODIES = (Ref(1, 100), Ref(2, 8))


def outbox(*peers: ProcessId) -> Outbox:
    box = Outbox(1, Iwrr())
    box.open(peers)
    return box


def sent_to(actions: list[Action]) -> list[ProcessId]:
    return [to for to, _ in messages(actions, Forward)]


def test_what_is_offered_is_sent_with_its_bodies() -> None:
    actions = outbox(A).offer(microbatch(3), BODIES, now=0.0)
    [(to, message)] = messages(actions, Forward)
    assert to == A
    assert (message.microbatch, message.stage, message.repair, message.insist) == (microbatch(3), 1, False, False)


def test_a_full_peer_is_left_alone_until_it_has_room() -> None:
    box = outbox(A, B)
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    other = B if first == A else A
    assert sent_to(box.denied(first, microbatch(0), 0, "full", 0.0)) == [other]
    assert sent_to(box.offer(microbatch(1), BODIES, 1.0)) == [other]
    assert sent_to(box.denied(other, microbatch(1), 0, "full", 1.0)) == []
    assert box.waiting == 1
    assert box.next_deadline() == 5.0
    assert sent_to(box.room(first, 2.0)) == [first]
    assert box.waiting == 0


def test_a_pause_ends_even_if_nobody_says_so() -> None:
    box = outbox(A)
    box.offer(microbatch(0), BODIES, 0.0)
    box.denied(A, microbatch(0), 0, "full", 0.0)
    assert sent_to(box.tick(4.9)) == []
    assert sent_to(box.tick(5.0)) == [A]


def test_a_dead_peers_microbatches_go_to_another_as_repairs() -> None:
    box = outbox(A, B)
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    box.accepted(first, microbatch(0), 0)
    box.routed(first, microbatch(0), 0, C, 1.0)
    [(to, message)] = messages(box.gone(first, 2.0), Forward)
    assert to != first
    assert (message.attempt, message.repair, message.held_by) == (REPAIR, True, C)
    assert not box.returned(first, microbatch(0), 0, 3.0), "the dead one's answer counts no more"
    assert box.returned(to, microbatch(0), REPAIR, 3.0)
    assert not box.returned(to, microbatch(0), REPAIR, 3.0), "only the first gradient counts"


def test_a_repair_asks_before_it_sends() -> None:
    box = outbox(A, B)
    actions = box.offer(microbatch(0), BODIES, 0.0, attempt=REPAIR, repair=True, hint=B)
    assert [to for to, _ in messages(actions, Adopt)] == [B]
    assert sent_to(actions) == []
    box.accepted(B, microbatch(0), REPAIR)
    assert box.holder(0) == B
    assert box.returned(B, microbatch(0), REPAIR, 1.0)


def test_a_repair_sends_only_when_nobody_has_it() -> None:
    box = outbox(A, B, C)
    box.offer(microbatch(0), BODIES, 0.0, attempt=REPAIR, repair=True, hint=B)
    asked = messages(box.denied(B, microbatch(0), REPAIR, "unknown", 0.0), Adopt)
    assert [to for to, _ in asked] == [A, C], "the hint was wrong: the others are asked"
    attempt = asked[0][1].attempt
    assert box.denied(A, microbatch(0), attempt, "unknown", 0.0) == []
    [(_, message)] = messages(box.gone(C, 0.0), Forward)
    assert message.attempt > attempt


def test_who_loses_what_it_has_passed_on_leaves_a_repair_above_all_later_attempts() -> None:
    box = outbox(A, B)
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    box.routed(first, microbatch(0), 0, C, 1.0)
    [(to, message)] = messages(box.denied(first, microbatch(0), 0, "invalid", 2.0), Forward)
    assert to != first
    assert (message.attempt, message.repair, message.held_by) == (REPAIR, True, C)


def test_a_newer_attempt_elsewhere_is_overtaken_after_a_pause() -> None:
    """The chain of the newer one may be broken: an attempt that stays below it would wait for ever."""
    box = outbox(A)
    box.offer(microbatch(0), BODIES, 0.0)
    assert sent_to(box.denied(A, microbatch(0), 0, "stale", 0.0)) == []
    [(_, message)] = messages(box.tick(box.pause_s), Forward)
    assert message.attempt == REPAIR


def test_the_last_ones_have_to_work_though_they_want_to_leave() -> None:
    box = outbox(A, B)
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    [second] = sent_to(box.denied(first, microbatch(0), 0, "draining", 0.0))
    [(_, message)] = messages(box.denied(second, microbatch(0), 1, "draining", 0.0), Forward)
    assert message.insist


def test_what_waits_for_a_dead_peer_goes_to_one_that_wants_to_leave() -> None:
    """Nothing else would wake it: the full one is dead, and the other one was not full."""
    box = outbox(A, B)
    assert sent_to(box.offer(microbatch(0), BODIES, 0.0)) == [A]
    assert sent_to(box.denied(A, microbatch(0), 0, "draining", 0.0)) == [B]
    assert sent_to(box.denied(B, microbatch(0), 1, "full", 0.0)) == []
    [(to, message)] = messages(box.gone(B, 1.0), Forward)
    assert (to, message.insist) == (A, True)


def test_the_only_one_is_asked_when_it_is_late_and_given_it_again_if_it_never_got_it() -> None:
    box = outbox(A)
    box.offer(microbatch(0), BODIES, 0.0)
    assert box.next_deadline() == 15.0
    assert box.tick(14.9) == []
    assert messages(box.tick(15.0), Adopt) == [(A, Adopt(microbatch(0), 1, 0))]
    assert box.next_deadline() == 45.0, "it is asked again, later and later"
    box.denied(A, microbatch(0), 0, "unknown", 16.0)
    [(to, message)] = messages(box.tick(21.0), Forward)
    assert (to, message.repair) == (A, True), "perhaps it has passed it on and has forgotten it"


def test_a_gradient_that_does_not_come_is_asked_for() -> None:
    box = outbox(A, B)
    [first] = sent_to(box.offer(microbatch(0), BODIES, 0.0))
    box.routed(first, microbatch(0), 0, C, 3.0)
    assert box.next_deadline() == 33.0, "ten times the 3 s that it took"
    assert messages(box.tick(33.0), Adopt) == [(first, Adopt(microbatch(0), 1, 0))]
    assert box.returned(first, microbatch(0), 0, 34.0)
    assert box.next_deadline() is None


def test_an_answer_that_does_not_come_is_asked_for_again() -> None:
    box = outbox(A, B)
    box.offer(microbatch(0), BODIES, 0.0, attempt=REPAIR, repair=True)
    box.denied(A, microbatch(0), REPAIR, "unknown", 1.0)
    assert [to for to, _ in messages(box.tick(15.0), Adopt)] == [B]


def test_clearing_releases_all_bytes() -> None:
    box = outbox(A)
    box.offer(microbatch(0), BODIES, 0.0)
    assert box.size_bytes == 108
    assert box.clear() == [Release(BODIES)]
    assert box.size_bytes == 0


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_each_is_in_one_living_hand_or_will_be_tried_again(data: st.DataObject) -> None:
    peers = [process(f"p{number}") for number in range(data.draw(st.integers(1, 4)))]
    box = outbox(*peers)
    alive = set(peers)
    offered, now = 0, 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        now += 1.0
        match data.draw(st.sampled_from(("offer", "repair", "accept", "deny", "drain", "room", "gone", "tick"))):
            case "offer" | "repair" as kind:
                box.offer(microbatch(offered), BODIES, now, repair=kind == "repair")
                offered += 1
            case "accept" | "deny" | "drain" as kind if box.entries:
                entry = data.draw(st.sampled_from(list(box.entries.values())))
                concerned = sorted(entry.asked) or ([entry.holder] if entry.holder else [])
                if concerned:
                    who = data.draw(st.sampled_from(concerned))
                    if kind == "accept":
                        box.accepted(who, entry.microbatch, entry.attempt)
                    else:
                        reason = "unknown" if entry.asked else "full" if kind == "deny" else "draining"
                        box.denied(who, entry.microbatch, entry.attempt, reason, now)
            case "room":
                box.room(data.draw(st.sampled_from(peers)), now)
            case "gone" if len(alive) > 1:
                victim = data.draw(st.sampled_from(sorted(alive)))
                alive.discard(victim)
                box.gone(victim, now)
            case "tick":
                box.tick(now)
        for index in range(offered):
            entry = box.entries[index]
            if entry.asked:
                assert entry.holder is None
                assert entry.asked <= alive
            elif entry.holder is not None:
                assert entry.holder in alive
            else:
                assert box.next_deadline() is not None, "it waits, and nothing will wake it"
