"""The leader: grants, refusals, drains, roll-backs, checkpoints, and the end of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from swarmflow.core.commit.step_summary import waits_for
from swarmflow.core.machines.leader import Leader
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.protocol.actions import Action, Send, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, Lost, Received, Tick
from swarmflow.core.protocol.messages import (
    Commit,
    Committed,
    Done,
    Drain,
    Evicted,
    Granted,
    Heartbeat,
    Join,
    LoadFailed,
    MemberEntered,
    MemberFailed,
    Message,
    OpenStep,
    Prepare,
    Prepared,
    Ready,
    Refused,
    Released,
    RosterDelta,
    SnapshotTaken,
    StateRoot,
    StepResult,
    TakeSnapshot,
    Unrepairable,
    Welcome,
)
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Microbatch, Plan, ProcessId
from tests.core.samples import member, messages, microbatch, of_type, process, written

ME = member("t0", -1)
A, B, C, OTHER = process("a"), process("b"), process("c"), process("t1")
SETTINGS = LeaderSettings(4, lambda step: 0.1 * (step + 1), 0.0, "1.0", "run", True, lambda: "new")
TIMEOUTS = Timeouts()


@dataclass
class Bench:
    """A leader of a run with one stage and one microbatch a step, and what it asked for."""

    settings: LeaderSettings = SETTINGS
    stages: int = 1
    version: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)
    now: float = 0.0
    leader: Leader = field(init=False)

    def __post_init__(self) -> None:
        plan = Plan(self.stages, 1, timeouts=self.timeouts)
        self.leader = Leader(ME, plan, self.settings, 1, self.version, self.version)
        self.leader.start(0.0)

    def hear(self, sender: ProcessId, message: Message) -> list[Action]:
        return self.leader.handle(Received(sender, message), self.now)

    def join(self, peer: ProcessId, stage: int = -1, role: str = "peer") -> list[Action]:
        return self.hear(peer, Join(role, "1.0", "run", replace(member(peer.name, stage), process=peer)))

    def ready(self, peer: ProcessId, stage: int = 0) -> list[Action]:
        return self.hear(peer, Ready(stage, self.leader.version, "digest", 4))

    def serve(self, *peers: ProcessId) -> None:
        for peer in peers:
            self.join(peer)
        for peer in peers:
            self.ready(peer)

    def committing(self) -> list[Action]:
        """Work the step at hand off until it is decided; returns what followed from the last answer."""
        step = self.leader.step
        assert step is not None
        epoch, peers = step.epoch, [peer.process for peer in step.roster.peers]
        actions = self.hear(peers[0], Done(Microbatch(epoch, 0), 0, FIRST_ATTEMPT, 2.0, 1))
        decided: list[Action] = []
        for asked, prepare in messages(actions, Prepare):
            results = (("stage-0", 1.0, "x"),) if prepare.groups else ()
            decided = self.hear(asked, Prepared(epoch, step.ballot.number, results))
        return decided

    def commit(self) -> list[Action]:
        """Work the step at hand off; returns what followed from the last answer."""
        step = self.leader.step
        assert step is not None
        epoch = step.epoch
        actions = self.committing()
        for peer in [each.process for each in step.roster.peers]:
            actions = self.hear(peer, Committed(epoch, epoch.step + 1, "same"))
        return actions + self.refuse_to_write(actions)

    def refuse_to_write(self, actions: list[Action]) -> list[Action]:
        """No peer has room for its stage's version."""
        asked = messages(actions, TakeSnapshot)
        answers = [self.hear(to, SnapshotTaken(0, take.version, failed="the disk is full")) for to, take in asked]
        return [action for answer in answers for action in answer]


def test_peers_that_start_together_spread_and_open_the_first_step() -> None:
    bench = Bench(stages=3)
    granted = [messages(bench.join(process(f"p{n}")), Granted)[0][1].stage for n in range(6)]
    assert sorted(granted) == [0, 0, 1, 1, 2, 2]
    assert not messages(bench.ready(process("p0"), granted[0]), OpenStep)
    assert bench.leader.waiting_for == "the peers of stage 1, 2, which are loading"
    bench.ready(process("p1"), granted[1])
    opened = messages(bench.ready(process("p2"), granted[2]), OpenStep)
    assert {to.name for to, _ in opened} == {"p0", "p1", "p2", "t0"}


@pytest.mark.parametrize(
    ("join", "why"),
    [
        (Join("peer", "0.9", "run", member("a", -1)), "install that version"),
        (Join("peer", "1.0", "other", member("a", -1)), "another run"),
        (Join("peer", "1.0", "run", member("b", -1)), "who it is"),
        (Join("cook", "1.0", "run", member("a", -1)), "who it is"),
        (Join("peer", "1.0", "run", member("a", 99)), "--stage 99: this run has the stages 0 to 0"),
    ],
)
def test_who_does_not_fit_is_refused_with_the_reason(join: Join, why: str) -> None:
    bench = Bench()
    [(to, refused)] = messages(bench.hear(A, join), Refused)
    assert to == A
    assert why in refused.reason
    assert A not in bench.leader.membership.known


def test_who_has_reduced_another_gradient_than_most_of_its_stage_is_put_out() -> None:
    bench = Bench()
    bench.serve(B, A, C)
    bench.commit()
    step = bench.leader.step
    assert step is not None
    bench.hear(A, Done(Microbatch(step.epoch, 0), 0, FIRST_ATTEMPT, 2.0, 1))
    for peer, digest in ((A, "x"), (B, "odd"), (C, "x")):
        actions = bench.hear(peer, Prepared(step.epoch, step.ballot.number, (("stage-0", 1.0, digest),)))
    assert [to for to, _ in messages(actions, Evicted)] == [B]
    assert bench.leader.step is not None
    assert bench.leader.step.epoch > step.epoch
    assert bench.leader.step.roster.peer_ids == {A, C}


def test_steps_follow_each_other_with_their_learning_rates() -> None:
    bench = Bench()
    bench.serve(A)
    rates = [result.learning_rate for _ in range(3) for _, result in messages(bench.commit(), StepResult)]
    assert rates == pytest.approx([0.1, 0.2, 0.3])
    assert bench.leader.version == 3


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
    [(to, granted)] = messages(bench.hear(B, Ready(0, 0, "digest", 4)), Granted)
    assert (to, granted.version, granted.grant, granted.follows) == (B, 1, 1, True)
    done = bench.hear(A, Done(microbatch(0, Epoch(0, 1)), 0, FIRST_ATTEMPT, 2.0, 1))
    assert not messages(done, Prepare)
    assert bench.leader.next_deadline() <= TIMEOUTS.join_hold_s
    assert {to for to, _ in messages(bench.hear(B, Ready(0, 1, "digest", 4, 1)), Prepare)} == {A, B}


def test_a_step_waits_for_nobody_longer_than_that() -> None:
    bench = Bench()
    bench.serve(A)
    bench.join(B)
    bench.commit()
    bench.hear(B, Ready(0, 0, "digest", 4))
    bench.hear(A, Done(microbatch(0, Epoch(0, 1)), 0, FIRST_ATTEMPT, 2.0, 1))
    bench.now = TIMEOUTS.join_hold_s
    assert {to for to, _ in messages(bench.leader.handle(Tick(), bench.now), Prepare)} == {A}


def test_no_wait_for_one_that_follows_makes_the_next_one_longer() -> None:
    bench = Bench(replace(SETTINGS, steps=100))
    bench.serve(A)
    bench.join(B)
    bench.commit()
    bench.hear(B, Ready(0, 0, "digest", 4))
    for number in range(1, 20):  # no step takes any time by itself
        epoch = Epoch(0, number)
        actions = bench.hear(A, Done(microbatch(0, epoch), 0, FIRST_ATTEMPT, 2.0, 1))
        while not (prepared := messages(actions, Prepare)):
            bench.now = bench.leader.next_deadline()
            actions = bench.leader.handle(Tick(), bench.now)
        bench.hear(A, Prepared(epoch, prepared[0][1].ballot, (("stage-0", 1.0, "x"),)))
        bench.hear(A, Committed(epoch, number + 1, "same"))
    assert bench.leader.version == 20
    assert bench.now < 2.5


def test_all_waits_for_one_that_follows_come_to_two_seconds_before_they_grow() -> None:
    times = Timeouts()
    assert times.hold_s(0, 60.0) == 0.0, "a download is not waited for"
    assert sum(times.hold_s(tries, 0.1) for tries in range(9)) < 2.5
    assert max(times.hold_s(tries, 60.0) for tries in range(5)) <= 0.05 * 60.0
    assert times.hold_s(10, 60.0) == times.join_hold_max_s, "or it would never take part"
    assert times.hold_s(10_000, 0.1) == times.join_hold_max_s


def test_a_leaver_is_let_go_at_the_edge() -> None:
    bench = Bench()
    bench.serve(A, B)
    bench.commit()
    assert not messages(bench.hear(A, Drain()), Released)
    actions = bench.commit()
    assert [to for to, _ in messages(actions, Released)] == [A]
    assert [(to, again.gone) for to, again in messages(actions, RosterDelta)] == [(B, (A,)), (ME.process, (A,))]


def test_a_leaver_is_let_go_when_the_step_starts_over_without_it() -> None:
    bench = Bench()
    bench.serve(A, B)
    bench.commit()
    bench.hear(A, Drain())
    assert bench.leader.step is not None
    actions = bench.hear(B, Unrepairable(bench.leader.step.epoch, "bytes do not decode"))
    assert [to for to, _ in messages(actions, Released)] == [A]
    assert bench.leader.step.roster.peers == (member("b", 0),)


def test_the_last_one_of_a_stage_is_let_go_when_its_state_is_safe() -> None:
    bench = Bench()
    bench.serve(A)
    bench.hear(A, Drain())
    actions = bench.commit()
    [write] = of_type(actions, WriteCheckpoint)
    assert write.version == 1
    assert not messages(actions, Released)
    actions = written(bench.leader, CheckpointWritten(1, ok=True), 0.0)
    assert [to for to, _ in messages(actions, Released)] == [A]
    assert bench.leader.waiting_for == "a peer for stage 0"
    [(_, granted)] = messages(bench.join(B), Granted)
    assert (granted.version, granted.donors) == (1, (ME,))


def test_a_leaving_trainer_still_gets_its_last_result() -> None:
    bench = Bench()
    bench.serve(A)
    assert messages(bench.join(OTHER, role="trainer"), Welcome)
    bench.commit()
    bench.hear(OTHER, Drain())
    actions = bench.commit()
    assert {to for to, _ in messages(actions, StepResult)} == {ME.process, OTHER}
    assert [to for to, _ in messages(actions, Released)] == [OTHER]


def test_a_stage_that_is_lost_rolls_back_to_what_is_on_disk() -> None:
    bench = Bench()
    bench.serve(A)
    bench.commit()
    bench.commit()
    bench.leader.handle(Lost(A, "killed"), 0.0)
    assert (bench.leader.version, bench.leader.generation) == (0, 2)
    [(_, granted)] = messages(bench.join(B), Granted)
    assert (granted.version, granted.donors) == (0, ())
    [first, *_] = messages(bench.ready(B), OpenStep)
    assert first[1].epoch.generation == 2


def test_newcomers_that_have_nobody_to_load_from_do_not_hold_up_the_roll_back() -> None:
    bench = Bench()
    bench.serve(A)
    bench.commit()
    bench.join(B)
    bench.leader.handle(Lost(A, "killed"), 0.0)
    assert bench.leader.version == 1, "B may have loaded it already"
    granted = messages(bench.join(C), Granted)
    assert granted[0][1].donors == (ME,), "nobody has the state"
    bench.hear(B, LoadFailed(0, 1, "the donor is gone"))
    assert bench.leader.version == 0, "C cannot load it either"


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
    bench.hear(C, Ready(0, 1, "digest", 4))
    [(to, granted)] = messages(bench.commit(), Granted)
    assert (to, granted.version, granted.follows) == (B, 2, True)
    assert {donor.process for donor in granted.donors} == {A, C}
    assert not messages(bench.hear(B, Ready(0, 2, "digest", 4, 0)), OpenStep), "that answers an earlier grant"
    assert bench.leader.membership.known[B].phase is MemberPhase.LOADING


def test_who_was_ready_after_the_ballot_had_begun_gets_the_update_of_that_step() -> None:
    bench = Bench()
    bench.serve(A)
    bench.join(B)
    bench.hear(A, Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1))
    bench.ready(B)
    epoch = microbatch(0).epoch
    bench.hear(A, Prepared(epoch, 1, (("stage-0", 1.0, "x"),)))
    [(to, granted)] = messages(bench.hear(A, Committed(epoch, 1, "same")), Granted)
    assert (to, granted.version, granted.follows) == (B, 1, True)


def test_who_has_a_commit_before_the_leader_knows_that_all_have_it_is_in_the_next_step() -> None:
    bench = Bench()
    bench.serve(A)
    bench.join(B)
    bench.hear(A, Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1))
    epoch = microbatch(0).epoch
    bench.hear(A, Prepared(epoch, 1, (("stage-0", 1.0, "x"),)))
    assert not messages(bench.hear(B, Ready(0, 1, "digest", 4)), Granted)
    closed = bench.hear(A, Committed(epoch, 1, "same"))
    assert not messages(closed, Granted)
    assert B in [to for to, _ in messages(closed, OpenStep)]


def test_a_loading_peer_gets_the_root_that_most_members_of_its_stage_report() -> None:
    bench = Bench()
    bench.serve(A, C, OTHER)
    bench.commit()  # the first step began with A alone
    bench.join(B)
    commits = [commit for _, commit in messages(bench.committing(), Commit)]
    assert {commit.rooted for commit in commits} == {(0,)}
    assert not messages(bench.hear(C, StateRoot(0, 2, "wrong")), StateRoot)
    assert not messages(bench.hear(A, StateRoot(0, 2, "right")), StateRoot)
    assert messages(bench.hear(OTHER, StateRoot(0, 2, "right")), StateRoot) == [(B, StateRoot(0, 2, "right"))]
    assert not messages(bench.hear(OTHER, StateRoot(0, 2, "right")), StateRoot)
    assert not messages(bench.hear(A, StateRoot(0, 9, "right")), StateRoot)


def test_who_was_ready_too_late_finds_the_update_that_it_lacks() -> None:
    bench = Bench()
    bench.serve(A)
    bench.join(B)
    bench.hear(A, Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1))
    bench.ready(B)
    commits = messages(bench.hear(A, Prepared(microbatch(0).epoch, 1, (("stage-0", 1.0, "x"),))), Commit)
    assert [(to, commit.rooted) for to, commit in commits] == [(A, (0,))]


def test_nobody_hashes_a_stage_that_nobody_loads() -> None:
    bench = Bench()
    bench.serve(A)
    assert [commit.rooted for _, commit in messages(bench.committing(), Commit)] == [()]


def test_after_a_roll_back_nothing_that_was_loaded_counts() -> None:
    bench = Bench()
    bench.serve(A)
    bench.commit()
    bench.join(B)
    bench.leader.handle(Lost(A, "killed"), 0.0)
    [(to, granted)] = messages(bench.hear(B, LoadFailed(0, 1, "the donor is gone")), Granted)
    assert (to, granted.version, granted.follows) == (B, 0, False)


def test_silence_is_death_and_a_stranger_has_to_join() -> None:
    bench = Bench()
    bench.serve(A, B)
    bench.now = 3.0
    bench.hear(B, Heartbeat())
    bench.now = 6.0
    bench.hear(B, Heartbeat())
    bench.now = TIMEOUTS.silence_s + 0.5
    assert A in [to for to, _ in messages(bench.leader.handle(Tick(), bench.now), Evicted)]
    assert [to for to, _ in messages(bench.hear(A, Heartbeat()), Evicted)] == [A]
    assert B in bench.leader.membership.known


@pytest.mark.parametrize("incarnations", [(1, 2), (2, 1)], ids=["rising", "falling"])
def test_the_next_life_of_a_process_replaces_the_former(incarnations: tuple[int, int]) -> None:
    bench = Bench()
    former, present = (process("a", incarnation) for incarnation in incarnations)
    bench.serve(former, B)
    bench.join(present)
    late = bench.join(former)  # it was sent before the next life began
    assert [to for to, _ in messages(late, Evicted)] == [former]
    assert set(bench.leader.membership.known) == {present, B, ME.process}


def test_a_ballot_that_does_not_end_is_begun_anew_with_more_time() -> None:
    bench = Bench(timeouts=Timeouts(ballot_s=5.0))
    bench.serve(A, B)
    step = bench.leader.step
    assert step is not None
    bench.hear(A, Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1))
    bench.hear(A, Prepared(step.epoch, 1, (("stage-0", 1.0, "x"),)))
    begun = []
    for bench.now in (1.0, 3.5, 5.9, 6.1):
        actions = bench.hear(A, Heartbeat()) + bench.hear(B, Heartbeat())
        begun.append({message.ballot for _, message in messages(actions, Prepare)})
    assert begun == [set(), set(), set(), {2}]
    bench.hear(A, Prepared(step.epoch, 1, (("stage-0", 1.0, "x"),)))
    assert str(A) in waits_for(step), "what it has reduced for a former ballot is void"
    for bench.now in (9.0, 12.0, 15.0):
        bench.leader.handle(Tick(), bench.now)
    bench.now = 15.9
    assert not messages(bench.hear(A, Heartbeat()) + bench.hear(B, Heartbeat()), Prepare), "it has twice as long"
