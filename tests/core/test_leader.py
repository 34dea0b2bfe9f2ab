"""The leader: grants, refusals, drains, roll-backs, checkpoints, and the end of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from swarmflow.core.commit.step_summary import waits_for
from swarmflow.core.machines.leader import Leader
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.protocol.actions import Action, Connect, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, Lost, Mishandled, Received, Tick
from swarmflow.core.protocol.messages import (
    Committed,
    Done,
    Drain,
    Evicted,
    Granted,
    Heartbeat,
    Join,
    Left,
    LoadFailed,
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
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Microbatch, Plan, ProcessId
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
    root: str = "root"  # of the state of each stage, at each version
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
        return self.hear(peer, Ready(stage, self.leader.version, self.root, 4))

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
        """Work the step at hand off; returns what followed from the last result of a reduction, and since."""
        step = self.leader.step
        assert step is not None
        epoch = step.epoch
        actions = self.committing()
        peers = [each.process for each in step.roster.peers]
        for peer in peers:
            actions += self.hear(peer, Committed(epoch, epoch.step + 1))
        for peer in peers:
            actions += self.hear(peer, StateRoot(0, epoch.step + 1, self.root))
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
    actions = bench.hear(A, join)
    [(to, refused)] = messages(actions, Refused)
    assert to == A
    assert why in refused.reason
    dialled = [member.process for action in actions if isinstance(action, Connect) for member in action.members]
    assert dialled == ([A] if join.member.process == A else []), "nobody says where another process is"
    assert A not in bench.leader.membership.known


def test_who_has_reduced_another_gradient_than_most_of_its_stage_whoever_summed_is_put_out() -> None:
    bench = Bench()
    bench.serve(B, A, C)
    bench.commit()
    for out in ([], [], [B]):  # each time another one has summed
        step = bench.leader.step
        assert step is not None
        bench.hear(A, Done(Microbatch(step.epoch, 0), 0, FIRST_ATTEMPT, 2.0, 1))
        for peer, digest in ((A, "x"), (B, "odd"), (C, "x")):
            actions = bench.hear(peer, Prepared(step.epoch, step.ballot.number, (("stage-0", 1.0, digest),)))
        assert [to for to, _ in messages(actions, Evicted)] == out
    assert bench.leader.step is not None
    assert step is not None
    assert bench.leader.step.epoch > step.epoch
    assert bench.leader.step.roster.peer_ids == {A, C}


def test_steps_follow_each_other_with_their_learning_rates() -> None:
    bench = Bench()
    bench.serve(A)
    rates = [result.learning_rate for _ in range(3) for _, result in messages(bench.commit(), StepResult)]
    assert rates == pytest.approx([0.1, 0.2, 0.3])
    assert bench.leader.version == 3


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


def test_the_state_of_leavers_is_saved_when_the_step_starts_over_and_not_given_up() -> None:
    bench = Bench()
    bench.serve(A, B)
    bench.commit()
    bench.hear(A, Drain())
    bench.hear(B, Drain())
    actions = bench.leader.handle(Mishandled(process("x"), "raised"), 0.0)
    assert [write.version for write in of_type(actions, WriteCheckpoint)] == [1]
    assert bench.leader.version == 1
    released = messages(written(bench.leader, CheckpointWritten(1, ok=True), 0.0), Released)
    assert [to for to, _ in released] == [A, B]


def test_the_last_one_of_a_stage_stays_while_the_disk_takes_no_copy() -> None:
    bench = Bench()
    bench.serve(A)
    bench.hear(A, Drain())
    bench.commit()
    failed = written(bench.leader, CheckpointWritten(1, ok=False, reason="the disk is full"), 0.0)
    assert bench.leader.version == 1
    assert not messages(failed, Released)
    assert bench.leader.waiting_for == "a copy of stage 0, whose last peers want to leave: a.0001"
    bench.now = 1000.0
    [again] = of_type(bench.leader.handle(Tick(), bench.now), WriteCheckpoint)
    assert again.version == 1
    assert [to for to, _ in messages(written(bench.leader, CheckpointWritten(1, ok=True), 1000.0), Released)] == [A]


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


def test_only_who_has_a_part_in_the_decision_counts_as_following_no_other_leader_when_it_leaves() -> None:
    bench = Bench()
    bench.serve(A, B, C)
    bench.commit()  # the first step began with A alone
    bench.leader.handle(Lost(B, "reset"), bench.now)
    for leaving, term in ((A, 1), (B, 1), (C, 0), (OTHER, 1), (process("stranger"), 1)):
        bench.hear(leaving, Left(term))
    assert bench.leader.lineage.committed_followers == {ME.process, A, B}
