"""The leader: peers that load a stage while steps are made, and how long a step waits for them."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.events import Lost, Tick
from swarmflow.core.protocol.messages import (
    Committed,
    Done,
    Evicted,
    Granted,
    Heartbeat,
    LoadFailed,
    MemberEntered,
    MemberFailed,
    OpenStep,
    Prepare,
    Prepared,
    Ready,
    ReportRoot,
    StateRoot,
    Unrepairable,
    VersionCertified,
)
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, ProcessId, Snapshot
from tests.core.samples import REPAIR, commits, messages, microbatch, of_type
from tests.core.test_leader import ME, OTHER, SETTINGS, TIMEOUTS, A, B, Bench, C


def test_no_step_waits_for_one_that_loads() -> None:
    bench = Bench()
    bench.serve(A)
    [(_, granted)] = messages(bench.join(B), Granted)
    assert ([donor.process for donor in granted.donors], granted.follows) == ([A], False)
    done = bench.hear(A, Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1))
    assert {to for to, _ in messages(done, Prepare)} == {A}


def test_who_is_ready_before_the_ballot_takes_part_in_it() -> None:
    bench = Bench()
    bench.serve(A)
    bench.join(B)
    assert not messages(bench.ready(B), OpenStep)
    done = bench.hear(A, Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1))
    assert {to for to, _ in messages(done, Prepare)} == {A, B}


def test_a_step_waits_a_little_for_one_that_lacks_the_last_update_alone() -> None:
    bench = Bench()
    bench.serve(A)
    bench.join(B)
    bench.commit()
    [(to, granted)] = messages(bench.hear(B, Ready(0, 0, "root", 4)), Granted)
    assert (to, granted.version, granted.grant, granted.follows) == (B, 1, 1, True)
    done = bench.hear(A, Done(microbatch(0, Epoch(0, 1)), 0, FIRST_ATTEMPT, 2.0, 1))
    assert not messages(done, Prepare)
    assert bench.leader.next_deadline() <= TIMEOUTS.join_hold_s
    assert {to for to, _ in messages(bench.hear(B, Ready(0, 1, "root", 4, 1)), Prepare)} == {A, B}


def test_a_step_waits_for_nobody_longer_than_that() -> None:
    bench = Bench()
    bench.serve(A)
    bench.join(B)
    bench.commit()
    bench.hear(B, Ready(0, 0, "root", 4))
    bench.hear(A, Done(microbatch(0, Epoch(0, 1)), 0, FIRST_ATTEMPT, 2.0, 1))
    bench.now = TIMEOUTS.join_hold_s
    assert {to for to, _ in messages(bench.leader.handle(Tick(), bench.now), Prepare)} == {A}


def test_no_wait_for_one_that_follows_makes_the_next_one_longer() -> None:
    bench = Bench(replace(SETTINGS, steps=100))
    bench.serve(A)
    bench.join(B)
    bench.commit()
    bench.hear(B, Ready(0, 0, "root", 4))
    for number in range(1, 20):  # no step takes any time by itself
        epoch = Epoch(0, number)
        actions = bench.hear(A, Done(microbatch(0, epoch), 0, FIRST_ATTEMPT, 2.0, 1))
        while not (prepared := messages(actions, Prepare)):
            bench.now = bench.leader.next_deadline()
            actions = bench.leader.handle(Tick(), bench.now)
        bench.hear(A, Prepared(epoch, prepared[0][1].ballot, (("stage-0", 1.0, "x"),)))
        bench.hear(A, Committed(epoch, number + 1))
    assert bench.leader.version == 20
    assert bench.now < 2.5


def test_all_waits_for_one_that_follows_come_to_two_seconds_before_they_grow() -> None:
    times = Timeouts()
    assert times.hold_s(0, 60.0) == 0.0, "a download is not waited for"
    assert sum(times.hold_s(tries, 0.1) for tries in range(9)) < 2.5
    assert max(times.hold_s(tries, 60.0) for tries in range(5)) <= 0.05 * 60.0
    assert times.hold_s(9, 60.0) == times.join_hold_max_s, "or it would never take part"
    assert times.hold_s(4, 6000.0) == times.join_hold_max_s
    assert times.hold_s(10, 60.0) == times.hold_s(10_000, 0.1) == 0.0, "the longest wait was in vain"


def test_the_time_of_a_repair_is_none_for_which_a_step_has_waited() -> None:
    bench = Bench(timeouts=Timeouts(silence_s=1e6, stall_s=1e6))
    bench.serve(A, B)
    bench.commit()
    assert bench.leader.step is not None
    epoch = bench.leader.epoch
    assert messages(bench.hear(B, Done(microbatch(0, epoch), 0, FIRST_ATTEMPT, 2.0, 1)), Prepare)
    bench.leader.handle(Lost(B, "killed"), bench.now)
    assert bench.leader.step.phase == "working"
    bench.now = 300.0
    assert messages(bench.hear(A, Done(microbatch(0, epoch), 0, REPAIR, 2.0, 1, ballot=1)), Prepare)
    assert bench.leader.ballots.held_s == 0.0


def test_who_says_all_the_time_that_it_is_ready_and_never_is_holds_up_few_steps() -> None:
    bench = Bench(replace(SETTINGS, steps=100), timeouts=Timeouts(silence_s=1e6, stall_s=1e6))
    bench.serve(A)
    bench.join(B)
    bench.commit()
    waits = []
    for number in range(1, 20):
        known, epoch = bench.leader.membership.known[B], Epoch(0, number)
        for _ in range(12):
            bench.hear(B, Ready(0, 0, "root", 4, known.grants))
        bench.now += 60.0
        done_s = bench.now
        actions = bench.hear(A, Done(microbatch(0, epoch), 0, FIRST_ATTEMPT, 2.0, 1))
        while not (prepared := messages(actions, Prepare)):
            bench.now = bench.leader.next_deadline()
            actions = bench.leader.handle(Tick(), bench.now)
        waits.append(bench.now - done_s)
        bench.hear(A, Prepared(epoch, prepared[0][1].ballot, (("stage-0", 1.0, "x"),)))
        bench.hear(A, Committed(epoch, number + 1))
    assert max(waits[:4]) <= 0.06 * 60.0, "each step counts once"
    assert max(waits) == TIMEOUTS.join_hold_max_s
    assert waits[10:] == [0.0] * 9


def test_a_load_that_failed_is_granted_again() -> None:
    bench = Bench()
    bench.join(A)
    [(to, granted)] = messages(bench.hear(A, LoadFailed(0, 0, "no donor")), Granted)
    assert (to, granted.stage) == (A, 0)


def test_who_is_ready_comes_in_when_one_of_its_stage_dies() -> None:
    """Even if it was the last one there: nothing has to be done again but what it had done."""
    bench = Bench()
    bench.serve(A)
    bench.commit()
    bench.join(B)
    bench.ready(B)
    actions = bench.leader.handle(Lost(A, "broke"), 0.0)
    assert sorted(to for to, said in messages(actions, MemberEntered) if said.member.process == B) == [A, B, ME.process]
    assert [to for to, _ in messages(actions, OpenStep)] == [B]
    assert bench.leader.step is not None
    assert (bench.leader.step.phase, [m.process for m in bench.leader.step.members.opened.stages[0]]) == (
        "working",
        [B],
    )


def test_who_loads_hears_of_a_death_for_it_may_be_waiting_for_the_dead() -> None:
    bench = Bench()
    bench.serve(A, B)
    bench.commit()
    [(_, granted)] = messages(bench.join(C), Granted)
    assert [donor.process for donor in granted.donors] == [A, B]
    told = [to for to, gone in messages(bench.leader.handle(Lost(A, "broke"), 0.0), MemberFailed) if gone.process == A]
    assert sorted(told) == [A, B, C, ME.process], "those of the epoch, and who loads"
    bench.ready(C)
    told_c = [a.message for a in of_type(bench.leader.handle(Lost(B, "broke"), 0.0), Send) if a.to == C]
    assert [type(message) for message in told_c] == [OpenStep, MemberEntered, MemberFailed], (
        "from now on it takes part itself"
    )


def test_a_load_goes_on_over_commits_and_is_granted_again_only_for_other_donors() -> None:
    bench = Bench()
    bench.serve(A)
    bench.join(B)
    assert not messages(bench.commit(), Granted), "it follows its donor"
    bench.join(C)
    bench.hear(C, Ready(0, 1, "root", 4))
    [(to, granted)] = messages(bench.commit(), Granted)
    assert (to, granted.version, granted.follows) == (B, 2, True)
    assert {donor.process for donor in granted.donors} == {A, C}
    assert not messages(bench.hear(B, Ready(0, 2, "root", 4, 0)), OpenStep), "that answers an earlier grant"
    assert bench.leader.membership.known[B].phase is MemberPhase.LOADING


def test_who_was_ready_after_the_ballot_had_begun_gets_the_update_of_that_step() -> None:
    bench = Bench()
    bench.serve(A)
    bench.join(B)
    bench.hear(A, Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1))
    bench.ready(B)
    epoch = microbatch(0).epoch
    bench.hear(A, Prepared(epoch, 1, (("stage-0", 1.0, "x"),)))
    [(to, granted)] = messages(bench.hear(A, Committed(epoch, 1)), Granted)
    assert (to, granted.version, granted.follows) == (B, 1, True)


def test_who_has_a_commit_before_the_leader_knows_that_all_have_it_is_in_the_next_step() -> None:
    bench = Bench(replace(SETTINGS, checkpoint_every=1))
    bench.serve(A)
    bench.join(B)
    bench.hear(A, Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1))
    epoch = microbatch(0).epoch
    bench.hear(A, Prepared(epoch, 1, (("stage-0", 1.0, "x"),)))
    assert not messages(bench.hear(B, Ready(0, 1, "root", 4)), Granted)
    bench.hear(A, StateRoot(0, 1, "root"))
    closed = bench.hear(A, Committed(epoch, 1))
    assert not messages(closed, Granted)
    assert B in [to for to, _ in messages(closed, OpenStep)]


def test_what_most_peers_of_a_stage_have_is_certified_and_who_has_something_else_is_put_out() -> None:
    bench = Bench()
    bench.serve(A, C, OTHER)
    bench.commit()  # the first step began with A alone
    bench.join(B)
    told = commits(bench.committing())
    assert {commit.followed for _, commit in told} == {(0,)}
    for peer, _ in told:
        bench.hear(peer, Committed(Epoch(0, 1), 2))
    assert not bench.hear(C, StateRoot(0, 2, "wrong"))
    assert not bench.hear(A, StateRoot(0, 2, "right"))
    actions = bench.hear(OTHER, StateRoot(0, 2, "right"))
    assert [to for to, _ in messages(actions, Evicted)] == [C]
    certified = VersionCertified(Snapshot(2, ("right",)))
    assert messages(actions, VersionCertified) == [(A, certified), (B, certified), (OTHER, certified)]
    assert not bench.hear(OTHER, StateRoot(0, 2, "right")), "once is enough"
    assert not bench.hear(A, StateRoot(0, 9, "right"))


def test_of_a_peer_that_reports_ever_other_roots_the_last_one_is_kept() -> None:
    bench = Bench()
    bench.serve(A, C, OTHER)
    bench.commit()
    bench.committing()
    for number in range(100):
        bench.hear(A, StateRoot(0, 2, f"root {number}"))
    assert dict(bench.leader.votes._counts[0, 2]) == {"root 99": 1}


def beat(bench: Bench, *peers: ProcessId) -> list[Action]:
    """Let a heartbeat pass."""
    bench.now += bench.timeouts.heartbeat_s
    heard = [action for peer in peers for action in bench.hear(peer, Heartbeat())]
    return [*heard, *bench.leader.handle(Tick(), bench.now)]


def test_each_sixteenth_version_is_hashed_and_whatever_is_loaded_written_or_may_be_wrong() -> None:
    bench = Bench(settings=replace(SETTINGS, steps=40))
    bench.serve(A)

    def commit() -> bool:
        [(_, decision)] = commits(bench.committing())
        bench.hear(A, Committed(decision.epoch, decision.epoch.step + 1))
        return decision.hashed

    assert [commit() for _ in range(33)] == 2 * [*15 * [False], True] + [False]
    bench.join(B)
    asked = beat(bench, A, B)
    assert messages(asked, ReportRoot) == [(A, ReportRoot(33))]
    assert messages(beat(bench, A, B), ReportRoot) == [], "once is enough"
    certified = VersionCertified(Snapshot(33, ("right",)))
    assert messages(bench.hear(A, StateRoot(0, 33, "right")), VersionCertified) == [(A, certified), (B, certified)]
    assert commit(), "it is loaded"
    bench.leader.handle(Lost(B, "killed"), bench.now)
    assert not commit()
    epoch = bench.leader.epoch
    bench.hear(A, Unrepairable(epoch, "its bytes do not decode"))
    assert messages(beat(bench, A), ReportRoot) == [(A, ReportRoot(35))], "its peers may differ"


def test_a_majority_of_those_who_are_left_is_counted_when_a_peer_has_died_that_had_not_reported() -> None:
    bench = Bench()
    bench.serve(A, C, OTHER)
    bench.commit()
    for peer, _ in commits(bench.committing()):
        bench.hear(peer, Committed(Epoch(0, 1), 2))
    assert not bench.hear(A, StateRoot(0, 2, "right")), "one of three"
    bench.leader.handle(Lost(C, "killed"), bench.now)
    bench.leader.handle(Lost(OTHER, "killed"), bench.now)
    bench.now += bench.timeouts.heartbeat_s
    seen = bench.leader.handle(Tick(), bench.now)
    assert messages(seen, VersionCertified) == [(A, VersionCertified(Snapshot(2, ("right",))))]


def test_where_two_peers_of_a_stage_differ_neither_is_believed_and_the_run_goes_back() -> None:
    bench = Bench()
    bench.serve(A, B)
    bench.commit()
    for peer, _ in commits(bench.committing()):
        bench.hear(peer, Committed(Epoch(0, 1), 2))
    bench.hear(A, StateRoot(0, 2, "one"))
    actions = bench.hear(B, StateRoot(0, 2, "other"))
    assert [to for to, _ in messages(actions, Evicted)] == [A, B]
    assert bench.leader.version == 0, "nothing is on a disk yet"


def test_who_has_loaded_something_else_than_its_stage_has_loads_it_again() -> None:
    bench = Bench()
    bench.serve(A)
    bench.commit()
    bench.join(B, 0)
    [(to, again)] = messages(bench.hear(B, Ready(0, 1, "garbage", 4)), Granted)
    assert (to, again.follows, again.certified) == (B, True, Snapshot(1, ("root",)))
    assert not messages(bench.hear(B, Ready(0, 1, "root", 4, again.grant)), Granted)
    assert bench.leader.membership.known[B].phase == "ready"


def test_who_was_ready_too_late_finds_the_update_that_it_lacks() -> None:
    bench = Bench()
    bench.serve(A)
    bench.join(B)
    bench.hear(A, Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1))
    bench.ready(B)
    told = commits(bench.hear(A, Prepared(microbatch(0).epoch, 1, (("stage-0", 1.0, "x"),))))
    assert [(to, commit.followed) for to, commit in told] == [(A, (0,))]


def test_nobody_hashes_a_stage_that_nobody_loads() -> None:
    bench = Bench()
    bench.serve(A)
    assert [commit.followed for _, commit in commits(bench.committing())] == [()]


def test_after_a_roll_back_nothing_that_was_loaded_counts() -> None:
    bench = Bench()
    bench.serve(A)
    bench.commit()
    bench.join(B)
    bench.leader.handle(Lost(A, "killed"), 0.0)
    [(to, granted)] = messages(bench.hear(B, LoadFailed(0, 1, "the donor is gone")), Granted)
    assert (to, granted.version, granted.follows) == (B, 0, False)
