"""Messages that reach a peer before what they build on: kept, bounded, and handled or released in the end."""

from __future__ import annotations

from typing import Any

import pytest

from swarmflow.core.machines.serving.early_messages import EARLY_BYTES_MAX, EARLY_BYTES_OF_ALL_MAX, EARLY_MAX, EARLY_S
from swarmflow.core.protocol.actions import RunLoss
from swarmflow.core.protocol.events import BlamedError, Received, StateLoaded, Tick
from swarmflow.core.protocol.messages import Backward, Forward, Granted, MemberFailed, OpenStep
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt, Epoch, Ref, Roster
from tests.core.peer_bench import ELEMENTS, INPUT, LEADER, MATE, ROSTER, STRANGER, TARGETS, Bench
from tests.core.samples import EPOCH, LINEAGE, member, microbatch, of_type, process, released


def test_what_comes_before_its_epoch_is_kept_and_then_done() -> None:
    bench = Bench()
    bench.hear(Granted(1, 0, 0, ()))
    bench.event(StateLoaded(0, 0, "digest", 4, ELEMENTS))
    early = bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), sender=LEADER, bodies=(INPUT, TARGETS))
    assert not of_type(early, RunLoss)
    assert of_type(bench.hear(OpenStep(1, EPOCH, ROSTER, LINEAGE)), RunLoss)


def test_what_a_kept_message_raises_is_blamed_on_its_sender() -> None:
    bench = Bench()
    other = process("t1")
    bench.hear(Granted(1, 0, 0, ()))
    bench.event(StateLoaded(0, 0, "digest", 4, ELEMENTS))
    without_attempt: Any = None
    kept = Received(other, Forward(microbatch(0), 0, without_attempt), (INPUT, TARGETS))
    bench.peer._early.keep(kept, 0.0)
    with pytest.raises(BlamedError) as caught:
        bench.hear(OpenStep(1, EPOCH, Roster(ROSTER.stages, (*ROSTER.trainers, member("t1", -1))), LINEAGE))
    assert (caught.value.process, caught.value.message) == (other, "Forward")


def test_one_sender_cannot_make_it_keep_more_than_a_bound_nor_shut_others_out() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    later = EPOCH.step + 1
    for index in range(EARLY_MAX):
        message = Forward(microbatch(0, Epoch(0, later)), 0, Attempt(denials=index))
        assert not released(bench.hear(message, sender=MATE, bodies=(Ref(100 + index), Ref(5000 + index))))
    over = Forward(microbatch(0, Epoch(0, later)), 0, FIRST_ATTEMPT)
    assert released(bench.hear(over, sender=MATE, bodies=(Ref(98), Ref(99)))) == [Ref(98), Ref(99)]
    assert not released(bench.hear(over, sender=LEADER, bodies=(Ref(96), Ref(97))))


def test_what_comes_early_is_bounded_in_bytes_of_one_sender_and_of_all() -> None:
    bench = Bench()
    bench.serve()
    half = EARLY_BYTES_MAX // 2
    early = [Forward(microbatch(0, Epoch(0, EPOCH.step + 1)), 0, Attempt(denials=index)) for index in range(3)]
    of_all = EARLY_BYTES_OF_ALL_MAX // EARLY_BYTES_MAX
    for sender in range(of_all):
        for number, message in enumerate(early):
            bodies = (Ref(10 * sender + number, half),)
            refused = released(bench.hear(message, sender=process(f"sender-{sender}"), bodies=bodies))
            assert refused == (list(bodies) if number == 2 else [])
    assert released(bench.hear(early[0], sender=MATE, bodies=(Ref(99, half),))) == [Ref(99, half)]
    assert not released(bench.hear(early[0], sender=MATE))


@pytest.mark.parametrize(("kept", "size_bytes"), [(EARLY_MAX, 0), (2, EARLY_BYTES_MAX // 2)])
def test_what_is_about_a_later_epoch_gives_way_to_what_is_due_next(kept: int, size_bytes: int) -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    for index in range(kept):
        far = Forward(microbatch(0, Epoch(0, EPOCH.step + 1000)), 0, Attempt(denials=index))
        assert not released(bench.hear(far, sender=MATE, bodies=(Ref(100 + index, size_bytes),)))
    following = Forward(microbatch(0, Epoch(0, EPOCH.step + 1)), 0, FIRST_ATTEMPT)
    assert released(bench.hear(following, sender=MATE, bodies=(Ref(99, 1),))) == [Ref(100 + kept - 1, size_bytes)]
    assert bench.peer.early[-1].message == following


def test_what_is_void_or_from_the_dead_is_released() -> None:
    bench = Bench()
    bench.serve()
    bench.hear(OpenStep(1, Epoch(1, 0), ROSTER, LINEAGE))
    stale = Forward(microbatch(0), 0, FIRST_ATTEMPT)
    assert released(bench.hear(stale, bodies=(INPUT, TARGETS))) == [INPUT, TARGETS]
    assert released(bench.hear(Backward(microbatch(0), 0, FIRST_ATTEMPT), sender=MATE, bodies=(Ref(5),))) == [Ref(5)]
    assert bench.peer.hops is not None
    assert bench.peer.hops.held == 0
    bench.hear(MemberFailed(1, Epoch(1, 0), MATE, "dead"))
    fresh = Forward(microbatch(0, Epoch(1, 0)), 0, FIRST_ATTEMPT)
    assert released(bench.hear(fresh, sender=MATE, bodies=(INPUT, TARGETS))) == [INPUT, TARGETS]


def test_what_a_stranger_sends_waits_for_the_leader_to_name_it_and_not_for_long() -> None:
    bench = Bench()
    bench.serve()
    assert not released(bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), STRANGER, (INPUT, TARGETS)))
    bench.now += EARLY_S
    assert released(bench.event(Tick())) == [INPUT, TARGETS]


def test_what_comes_early_and_never_gets_its_epoch_is_given_up_in_the_end() -> None:
    bench = Bench()
    bench.serve()
    bench.hear(Forward(microbatch(0, Epoch(9, 0)), 0, FIRST_ATTEMPT), MATE, (INPUT, TARGETS))
    while bench.now < EARLY_S - 1.0:
        bench.now += 1.0
        epoch = Epoch(EPOCH.generation + int(bench.now), 0)
        assert INPUT not in released(bench.hear(OpenStep(1, min(epoch, Epoch(8, 0)), ROSTER, LINEAGE)))
    bench.now += 2.0
    assert released(bench.event(Tick())) == [INPUT, TARGETS]
    assert bench.peer.early == []
