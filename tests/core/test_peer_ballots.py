"""A peer's part in a step: from the first microbatch over the ballot to the update."""

from __future__ import annotations

import pytest

from swarmflow.core.machines.serving.early_messages import EARLY_S
from swarmflow.core.machines.serving.peer_state import HOLD_COPIES_S
from swarmflow.core.protocol.actions import Apply, Count, Rejoin, RunLoss, RunReplay, Seal, SumPiece
from swarmflow.core.protocol.events import Applied, ComputeFailed, LossComputed, PieceFailed, Replayed, Sealed, Tick
from swarmflow.core.protocol.messages import (
    Commit,
    Committed,
    Denied,
    Done,
    Forward,
    LeaderHeartbeat,
    MemberFailed,
    Prepare,
    Prepared,
    ReducePart,
    Suspect,
    Unprepared,
    Unrepairable,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt, Ref
from tests.core.peer_bench import INPUT, LEADER, MATE, ME, RESULT, TALLY, TARGETS, Bench
from tests.core.samples import EPOCH, messages, microbatch, of_type, released


def test_a_step_from_the_first_microbatch_to_the_update() -> None:
    bench = Bench()
    bench.serve()
    actions = bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), bodies=(INPUT, TARGETS))
    assert of_type(actions, RunLoss)
    assert messages(bench.event(LossComputed(microbatch(0), 2.0, 1, None)), Done)
    assert of_type(bench.prepare(), Seal)
    results = (("stage-0", 1.0, "x"),)
    assert messages(bench.event(Sealed(EPOCH, 1, results)), Prepared) == [(LEADER, Prepared(EPOCH, 1, results))]
    assert of_type(bench.hear(Commit(1, EPOCH, 1, 0.5, 0.1, RESULT)), Apply) == [Apply(EPOCH, 0.5, 0.1)]
    actions = bench.event(Applied(EPOCH))
    assert messages(actions, Committed) == [(LEADER, Committed(EPOCH, 1))]
    assert sorted(released(actions)) == [INPUT, TARGETS], "the journal is dropped"


def test_the_time_of_an_all_reduce_is_counted_where_there_is_one() -> None:
    for members, expected in (((ME, MATE), [Count("reduce_seconds", amount=2.5)]), ((ME,), [])):
        bench = Bench(now=4.0)
        bench.serve()
        bench.work()
        bench.prepare(members=members)
        bench.now = 6.5
        assert of_type(bench.event(Sealed(EPOCH, 1, (("stage-0", 1.0, "x"),))), Count) == expected


def test_it_asks_for_no_copies_from_the_ballot_until_its_results_are_told() -> None:
    bench = Bench(now=4.0)
    bench.serve()
    bench.work()
    assert not bench.peer.holds_copies(4.0)
    bench.prepare()
    assert bench.peer.holds_copies(4.0)
    assert not bench.peer.holds_copies(4.0 + HOLD_COPIES_S), "an all-reduce may take most of every step"
    bench.event(Sealed(EPOCH, 1, (("stage-0", 1.0, "x"),)))
    assert not bench.peer.holds_copies(4.0), "the commit may wait for copies"


def test_it_prepares_only_with_exactly_what_is_listed() -> None:
    bench = Bench()
    bench.serve()
    [(_, refused)] = messages(bench.prepare(), Unprepared)
    assert refused.reason == "0 accumulated, 1 listed"
    bench.work()
    assert of_type(bench.prepare(ballot=2), Seal)


def test_an_orphan_is_taken_away_before_the_all_reduce() -> None:
    bench = Bench()
    bench.serve()
    bench.work(0)
    bench.hear(Forward(microbatch(1), 0, FIRST_ATTEMPT), bodies=(Ref(8), Ref(9)))
    bench.event(LossComputed(microbatch(1), 2.0, 1, None))
    actions = bench.prepare()
    assert of_type(actions, RunReplay) == [RunReplay(microbatch(1), Ref(8), Ref(9), None, -1)]
    assert not of_type(actions, Seal)
    [(_, denied)] = messages(
        bench.hear(Forward(microbatch(1), 0, Attempt(repair=1)), bodies=(Ref(10), Ref(11))), Denied
    )
    assert denied.reason == "full", "nothing is accumulated while a ballot is under way"
    actions = bench.event(Replayed(microbatch(1), -1))
    assert sorted(released(actions)) == [Ref(8), Ref(9)]
    assert of_type(actions, Seal)


def test_an_orphan_that_is_being_computed_is_taken_away_when_it_is_there() -> None:
    bench = Bench()
    bench.serve()
    bench.work(0)
    bench.hear(Forward(microbatch(1), 0, FIRST_ATTEMPT), bodies=(Ref(8), Ref(9)))
    assert not of_type(bench.prepare(), Seal)
    actions = bench.event(LossComputed(microbatch(1), 2.0, 1, None))
    assert not messages(actions, Done)
    assert of_type(actions, RunReplay)
    assert of_type(bench.event(Replayed(microbatch(1), -1)), Seal)


def test_an_orphan_whose_bytes_are_unusable_is_dropped_and_the_ballot_goes_on() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(Forward(microbatch(1), 0, FIRST_ATTEMPT), bodies=(Ref(4), Ref(5)))
    assert not of_type(bench.prepare(), Seal), "the other one is being computed, and not listed"
    actions = bench.event(ComputeFailed(microbatch(1), "too short"))
    assert not messages(actions, Unrepairable)
    assert [suspect.process for _, suspect in messages(actions, Suspect)] == [LEADER]
    assert of_type(actions, Seal)


def test_a_death_revokes_the_ballot_and_a_commit_without_it_is_left() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.prepare(members=(MATE, ME))
    bench.hear(ReducePart(EPOCH, 1, "stage-0", 0), sender=MATE, bodies=(Ref(20),))
    bench.hear(MemberFailed(1, EPOCH, MATE, "killed"))
    assert messages(bench.event(Sealed(EPOCH, 1, ())), Prepared) == []
    assert of_type(bench.hear(Commit(1, EPOCH, 1, 0.5, 0.1, RESULT)), Rejoin)


def test_who_sent_a_piece_that_does_not_decode_is_accused() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.prepare(members=(ME, MATE))
    part = ReducePart(EPOCH, 1, "stage-0", 0)
    assert of_type(bench.hear(part, sender=MATE, bodies=(Ref(20, 40),)), SumPiece)
    actions = bench.event(PieceFailed(EPOCH, 1, "stage-0", 0, (Ref(20, 40),)))
    assert [(to, suspect.process) for to, suspect in messages(actions, Suspect)] == [(LEADER, MATE)]
    assert released(actions) == [Ref(20, 40)]
    assert of_type(bench.hear(part, sender=MATE, bodies=(Ref(21, 40),)), SumPiece)


def test_who_sent_a_repair_before_the_ballot_that_a_death_has_revoked_sends_it_again() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(Prepare(1, EPOCH, 1, (), (), TALLY))
    failed = MemberFailed(1, EPOCH, MATE, "killed", lost=((0, 0), (0, 1)))
    [(to, denied)] = messages(bench.hear(failed), Denied)
    assert (to, denied.microbatch, denied.reason) == (LEADER, microbatch(0), "orphan")


@pytest.mark.parametrize("seconds", [1.0, 2 * EARLY_S])
def test_parts_that_come_while_an_orphan_is_subtracted_are_kept_however_long_that_takes(seconds: float) -> None:
    """Its mate does not send them again in this ballot."""
    bench = Bench()
    bench.serve()
    bench.work(0)
    bench.hear(Forward(microbatch(1), 0, FIRST_ATTEMPT), bodies=(Ref(8), Ref(9)))
    bench.event(LossComputed(microbatch(1), 2.0, 1, None))
    assert of_type(bench.prepare(members=(ME, MATE)), RunReplay), "the ballot counts another holder's"
    bench.hear(ReducePart(EPOCH, 1, "stage-0", 0), sender=MATE, bodies=(Ref(20, 40),))
    end_s = bench.now + seconds
    while bench.now < end_s:
        bench.now += 1.0
        bench.hear(LeaderHeartbeat(1, EPOCH))
        bench.event(Tick())
    assert of_type(bench.event(Replayed(microbatch(1), -1)), SumPiece)
