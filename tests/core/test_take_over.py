"""A leader that takes over goes on from each point of a step; without a majority it waits; what overflows is redone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swarmflow.core.election.candidacy import Candidacy, takeover_of
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.machines.leader import Leader
from swarmflow.core.membership.failures import EXPONENT_MIN, EXPONENT_STEP
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.protocol.actions import Action, Count, Exit, Log, Validate, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, Lost, Received, Tick
from swarmflow.core.protocol.messages import (
    Assign,
    Commit,
    Committed,
    Done,
    ElectionReport,
    Evicted,
    Granted,
    Heartbeat,
    Join,
    KeepCopy,
    MemberEntered,
    MemberFailed,
    Message,
    OpenStep,
    Overflow,
    Prepare,
    Prepared,
    Ready,
    Released,
    StepResult,
    Suspect,
    Tally,
)
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import (
    DEFAULT_EXPONENT,
    FIRST_ATTEMPT,
    Epoch,
    Member,
    Plan,
    ProcessId,
    Roster,
    Snapshot,
)
from tests.core.samples import LINEAGE, member, messages, microbatch, of_type, process, written

A, B, C = process("a"), process("b"), process("c")
T0, ME, T2 = process("t0"), process("t1"), process("t2")
PEERS = (member("a"), member("b"), member("c"))
TRAINERS = (member("t0", -1), member("t1", -1), member("t2", -1))
EPOCH = Epoch(2, 5)
OPENED = OpenStep(3, EPOCH, Roster((PEERS,), TRAINERS), LINEAGE, exponent=20)
PLAN = Plan(1, 3)
TALLY = Tally(2.0, 30, 1)
RESULT = StepResult(3, EPOCH, 2.0, 30, 1.0, 0.5, 0.3, 3, (3,), 1)
COMMIT = Commit(3, EPOCH, 1, 1 / 30, 0.3, RESULT)
REDUCED = (("stage-0", 1.0, "x"),)
SETTINGS = LeaderSettings(9, lambda step: 0.1 * step, 0.0, "1.0", "run", from_seed=True, new_lineage=lambda: "new")


def report(who: Member, opened: OpenStep = OPENED) -> ElectionReport:
    role = "trainer" if who.stage < 0 else "peer"
    indices = (TRAINERS.index(who),) if who in TRAINERS else ()
    return ElectionReport(
        4, Join(role, "1.0", "run", who), who, True, opened.epoch.step, False, opened, indices=indices
    )


def reduced(told: ElectionReport) -> ElectionReport:
    return replace(told, ballot=1, tally=TALLY, results=REDUCED)


def peers(*but: ProcessId) -> list[ElectionReport]:
    return [report(who) for who in PEERS if who.process not in but]


def done(index: int) -> Done:
    return Done(replace(microbatch(index), epoch=EPOCH), 0, FIRST_ATTEMPT, 20.0, 10)


@dataclass
class Bench:
    """Trainer t1, which takes over the run of trainer t0 in term 4: step 5, in its third try, on one stage."""

    reports: list[ElectionReport]
    own: ElectionReport = field(default_factory=lambda: report(TRAINERS[1]))
    settings: LeaderSettings = SETTINGS
    on_disk: int = 4
    now: float = 100.0
    leader: Leader = field(init=False)
    began: list[Action] = field(init=False)

    def __post_init__(self) -> None:
        tried = Candidacy(TRAINERS[1], 4, EpochView(OPENED), self.now)
        for told in (self.own, *self.reports):
            tried.report(told.member.process, told)
        estate = takeover_of(tried, PLAN, self.settings.learning_rate(5), 0.0, self.now)
        self.leader = Leader(TRAINERS[1], PLAN, self.settings, 4, 5, self.on_disk)
        self.began = self.leader.take_over(estate, self.now)

    def hear(self, sender: ProcessId, message: Message) -> list[Action]:
        return self.leader.handle(Received(sender, message), self.now)

    def wait(self, seconds: float, *living: ProcessId) -> list[Action]:
        """Let time pass, in which these are heard each second."""
        actions: list[Action] = []
        for _ in range(int(seconds)):
            self.now += 1.0
            for process_heard in living:
                actions += self.hear(process_heard, Heartbeat())
            actions += self.leader.handle(Tick(), self.now)
        return actions

    def commit(self, epoch: Epoch, *members: ProcessId) -> list[Action]:
        """All members apply the step that is committed; returns what followed from the last one."""
        actions: list[Action] = []
        for peer in members:
            actions = self.hear(peer, Committed(epoch, epoch.step + 1, "same"))
        return actions


# --- each point of a step ---------------------------------------------------------------------------------------------


def test_a_step_that_a_member_found_beyond_repair_starts_over() -> None:
    """The member has told the former leader, which died with it."""
    a, b, c = peers()
    bench = Bench([replace(a, done=(done(0),)), replace(b, void="its bytes cannot be used"), c])
    opened = messages(bench.began, OpenStep)
    assert {message.epoch for _, message in opened} == {Epoch(3, 5)}
    assert not messages(bench.began, Prepare)


def test_work_that_a_member_has_abandoned_is_done_again_by_others() -> None:
    """It was granted another state by a leader of the other side; its neighbours think that it has their hops."""
    a, b, c = peers()
    bench = Bench([replace(a, done=(done(0),)), replace(b, abandoned=True, ready=False), c])
    assert [to for to, _ in messages(bench.began, Evicted)] == [B]
    failed = [(to, dead) for to, dead in messages(bench.began, MemberFailed) if dead.process == B]
    assert {A, C, ME} <= {to for to, _ in failed}
    assert B not in bench.leader.membership.known


def test_what_was_abandoned_after_the_commit_is_of_no_use_any_more() -> None:
    a, b, c = (replace(reduced(told), commit=COMMIT) for told in peers())
    bench = Bench([replace(a, digest="same"), replace(b, digest="same", abandoned=True), c])
    assert not messages(bench.began, Evicted)
    assert B in bench.leader.membership.known


def test_the_work_of_a_step_goes_on() -> None:
    a, b, c = peers()
    bench = Bench([replace(a, done=(done(0),)), replace(b, done=(done(1),)), c])
    assert {dead.process for _, dead in messages(bench.began, MemberFailed)} == {T0, T2}
    assert {(dead.term, dead.epoch) for _, dead in messages(bench.began, MemberFailed)} == {(4, EPOCH)}
    given = [(to, message.indices) for to, message in messages(bench.began, Assign) if to == ME]
    assert sorted(index for _, indices in given for index in indices) == [0, 2], "those of t0 and t2"
    assert not messages(bench.began, OpenStep), "who is in the epoch stays in it"
    prepare = messages(bench.hear(C, done(2)), Prepare)
    assert [(to, message.entries, message.ballot) for to, message in prepare] == [
        (A, ((0, FIRST_ATTEMPT),), 1),
        (B, ((1, FIRST_ATTEMPT),), 1),
        (C, ((2, FIRST_ATTEMPT),), 1),
    ]
    for peer in (A, B, C):
        actions = bench.hear(peer, Prepared(EPOCH, 1, REDUCED))
    assert [(to, message.learning_rate) for to, message in messages(actions, Commit)] == [(A, 0.5), (B, 0.5), (C, 0.5)]
    actions = bench.commit(EPOCH, A, B, C)
    [(_, opened)] = [sent for sent in messages(actions, OpenStep) if sent[0] == A]
    assert (opened.term, opened.epoch, opened.lineage, opened.exponent) == (4, Epoch(2, 6), LINEAGE, DEFAULT_EXPONENT)
    assert [trainer.process for trainer in opened.roster.trainers] == [ME]


def test_who_came_in_amid_the_step_is_told_to_all_once_more() -> None:
    """The former leader may have died while it told of it: who has not heard would never send it anything."""
    d = member("d")
    came = replace(OPENED, roster=Roster(((*PEERS, d),), TRAINERS), newcomers=(d.process,))
    heard = replace(report(PEERS[0]), newcomers=(d,), entered=(d.process,))
    bench = Bench([heard, report(PEERS[1]), report(PEERS[2]), report(d, came)])
    told = [to for to, said in messages(bench.began, MemberEntered) if said.member == d]
    assert sorted(told) == sorted([A, B, C, d.process, T0, ME, T2])
    assert bench.leader.step is not None
    assert d in bench.leader.step.members.opened.stages[0]


def test_a_ballot_that_everybody_has_reduced_is_committed_at_once() -> None:
    bench = Bench([reduced(told) for told in peers()])
    commit = dict(messages(bench.began, Commit))
    assert list(commit) == [A, B, C]
    assert {(message.term, message.ballot, message.scale) for message in commit.values()} == {(4, 1, 1 / 30)}
    assert not messages(bench.began, MemberFailed), "no repair of what is committed"
    [(to, result)] = messages(bench.commit(EPOCH, A, B, C), StepResult)
    assert (to, result.epoch, result.loss, result.tokens, result.retries) == (ME, EPOCH, 2.0, 30, 1)


def test_sums_that_do_not_agree_were_not_committed_and_whose_is_another_goes() -> None:
    told = [reduced(told) for told in peers()]
    told[2] = replace(told[2], results=(("stage-0", 1.0, "y"),))
    bench = Bench(told)
    assert not messages(bench.began, Commit)
    assert [to for to, _ in messages(bench.began, Evicted)] == [C]
    assert bench.leader.epoch == Epoch(EPOCH.generation + 1, EPOCH.step)


def inherited() -> Bench:
    """All who are left have reduced the ballot, but only three of six have promised it: the other trainer is asked."""
    bench = Bench([*(reduced(told) for told in peers(C)), report(TRAINERS[2])])
    assert bench.leader.step is not None
    assert bench.leader.step.phase == "prepared"
    return bench


def test_a_death_leaves_a_ballot_that_may_be_committed_elsewhere_as_it_is() -> None:
    bench = inherited()
    actions = bench.leader.handle(Lost(B, "killed"), bench.now)
    assert not messages(actions, MemberFailed), "told of it the others would let go of their sums"
    assert {to for to, _ in messages(bench.hear(T2, Prepared(EPOCH, 1, ())), Commit)} == {A}


def test_whoever_is_ready_to_take_a_dead_ones_place_has_no_part_in_such_a_ballot() -> None:
    bench = inherited()
    new = member("n")
    bench.hear(new.process, Join("peer", "1.0", "run", new))
    bench.hear(new.process, Ready(0, 5, "digest", 4, bench.leader.membership.known[new.process].grants))
    bench.leader.handle(Lost(B, "killed"), bench.now)
    assert {to for to, _ in messages(bench.hear(T2, Prepared(EPOCH, 1, ())), Commit)} == {A}


def test_such_a_ballot_is_asked_for_again_and_never_begun_anew() -> None:
    bench = inherited()
    actions = bench.wait(61.0, A, B, T2)
    assert {(to, message.ballot) for to, message in messages(actions, Prepare)} == {(T2, 1)}


def test_such_a_step_starts_over_in_another_lineage_alone() -> None:
    bench = inherited()
    for victim in (A, B):
        bench.leader.handle(Lost(victim, "killed"), bench.now)
    assert bench.leader.lineage.name == "new"


def test_a_commit_is_told_to_those_who_have_not_applied_it() -> None:
    told = [reduced(told) for told in peers()]
    told[1] = replace(told[1], commit=COMMIT, digest="same", version=6)
    bench = Bench(told)
    assert messages(bench.began, Commit) == [(A, replace(COMMIT, term=4)), (C, replace(COMMIT, term=4))]
    actions = bench.commit(EPOCH, A, C)
    assert messages(actions, StepResult) == [(ME, RESULT)], "the very line that the former leader would have told"
    assert bench.leader.version == 6


def test_a_step_that_everybody_has_applied_is_followed_by_the_next() -> None:
    applied = [replace(reduced(told), commit=COMMIT, digest="same", version=6) for told in peers()]
    bench = Bench(applied, settings=replace(SETTINGS, validate_every=6))
    assert not messages(bench.began, Commit)
    assert [action.version for action in of_type(bench.began, Validate)] == [6]
    assert not messages(bench.began, StepResult), "it is told with its validation loss"
    opened = messages(Bench(applied).began, OpenStep)
    assert {message.epoch for _, message in opened} == {Epoch(2, 6)}
    assert [to for to, _ in opened] == [A, B, C, ME]


def test_parameters_that_stray_are_found_by_the_next_leader_too() -> None:
    told = [replace(reduced(told), commit=COMMIT, digest="same", version=6) for told in peers()]
    told[2] = replace(told[2], digest="other")
    assert [to for to, _ in messages(Bench(told).began, Evicted)] == [C]


# --- who is there -----------------------------------------------------------------------------------------------------


def test_everybody_who_reported_is_known_as_what_it_is() -> None:
    told = peers(C)
    told[1] = replace(told[1], draining=True)
    bench = Bench([*told, report(TRAINERS[2])])
    known = bench.leader.membership.known
    assert sorted(known) == [A, B, ME, T2]
    assert [(entry.phase, entry.version, entry.draining) for entry in (known[A], known[B])] == [
        ("ready", 5, False),
        ("ready", 5, True),
    ]
    assert {dead.process for _, dead in messages(bench.began, MemberFailed)} == {C, T0}
    [(to, _)] = messages(bench.hear(C, Heartbeat()), Evicted)
    assert to == C, "who has not answered has to join again"


def test_a_leaver_is_let_go_by_the_next_leader() -> None:
    told = [replace(reduced(told), commit=COMMIT, digest="same", version=6) for told in peers()]
    told[0] = replace(told[0], draining=True)
    assert [to for to, _ in messages(Bench(told).began, Released)] == [A]


def test_one_that_was_asked_to_go_before_it_led_writes_the_version_first() -> None:
    told = [replace(reduced(told), commit=COMMIT, digest="same", version=6) for told in peers()]
    bench = Bench(told, own=replace(report(TRAINERS[1]), draining=True))
    assert not messages(bench.began, Released)
    assert [write.version for write in of_type(bench.began, WriteCheckpoint)] == [6]
    actions = written(bench.leader, CheckpointWritten(6, ok=True), bench.now)
    assert [action.ok for action in of_type(actions, Exit)] == [True]


def test_who_has_not_heard_of_the_epoch_is_told_of_it() -> None:
    late = replace(report(PEERS[0], replace(OPENED, epoch=Epoch(2, 4))), version=5)
    bench = Bench([late, *peers(A)])
    [(to, opened)] = messages(bench.began, OpenStep)
    assert (to, opened.term, opened.epoch, opened.exponent) == (A, 4, EPOCH, 20)
    assert bench.leader.step is not None
    assert A in bench.leader.step.roster.ids


def test_who_was_loading_is_granted_its_stage_anew() -> None:
    told = replace(report(PEERS[2]), ready=False, version=-1)
    bench = Bench([*peers(C), told])
    [(to, granted)] = messages(bench.began, Granted)
    assert (to, granted.term, granted.stage, granted.version) == (C, 4, 0, 5)
    assert [donor.process for donor in granted.donors] == [A, B]
    assert bench.leader.membership.known[C].phase == "loading"
    bench.hear(C, Ready(0, 5, "digest", 4, grant=-1))
    assert bench.leader.membership.known[C].phase == "loading", "the answer to a grant of the former leader"
    bench.hear(C, Ready(0, 5, "digest", 4, granted.grant))
    assert bench.leader.membership.known[C].phase == "ready"


def test_the_expelled_are_told_and_suspects_have_to_show_that_they_live() -> None:
    told = peers()
    told[0] = replace(told[0], suspects=(B, C))
    told[2] = replace(told[2], gone=(T2,))
    bench = Bench([*told, report(TRAINERS[2])])
    assert {dead.process for _, dead in messages(bench.began, MemberFailed)} == {T0, T2}
    assert {to for to, _ in messages(bench.began, Evicted)} == {T2}
    assert {dead.process for _, dead in messages(bench.wait(4.0, A, C), MemberFailed)} == {B}
    assert sorted(bench.leader.membership.known) == [A, C, ME]


def test_whom_two_have_lost_is_given_up_by_the_next_leader_too() -> None:
    told = peers()
    told[0], told[2] = replace(told[0], suspects=(B,)), replace(told[2], suspects=(B,))
    bench = Bench(told)
    assert {to for to, _ in messages(bench.began, Evicted)} == {B}


def test_whoever_accuses_the_leader_itself_does_not_keep_it_busy_for_ever() -> None:
    a, b, c = peers()
    bench = Bench([replace(a, suspects=(ME,)), b, c])
    assert not messages(bench.wait(4.0, A, B, C), MemberFailed)
    bench.leader.faults.suspicions.accuse(A, ME, "lost", bench.now)  # as none of the leader's doors takes it
    assert not messages(bench.wait(4.0, A, B, C), MemberFailed)
    assert {dead.process for _, dead in messages(bench.wait(9.0, A, B), MemberFailed)} == {C}


def test_a_step_that_nobody_who_is_left_knows_of_starts_over_as_another_lineage() -> None:
    later = replace(OPENED, epoch=Epoch(3, 5))
    a, b = replace(report(PEERS[0], later), gone=(B,)), replace(report(PEERS[1], later), gone=(A,))
    bench = Bench([a, b, report(PEERS[2])])
    assert {to for to, _ in messages(bench.began, Evicted)} >= {A, B}
    assert (bench.leader.epoch, bench.leader.lineage.name) == (Epoch(4, 5), "new")
    assert sorted(bench.leader.membership.known) == [C, ME]


def test_a_stage_that_nobody_is_left_of_goes_back_to_what_is_on_its_own_disk() -> None:
    bench = Bench([report(TRAINERS[2])], on_disk=4)
    assert Count("rollbacks") in bench.began
    assert (bench.leader.version, bench.leader.generation) == (4, 4), "one for the step, one for the run"
    assert bench.leader.waiting_for == "a peer for stage 0"


def test_what_is_on_disk_is_kept_by_the_other_trainers_too() -> None:
    applied = [replace(reduced(told), commit=COMMIT, digest="same", version=6) for told in peers()]
    bench = Bench([*applied, report(TRAINERS[2])], settings=replace(SETTINGS, checkpoint_every=2))
    assert [write.version for write in of_type(bench.began, WriteCheckpoint)] == [6]
    kept = messages(written(bench.leader, CheckpointWritten(6, ok=True, digests=("d",)), bench.now), KeepCopy)
    assert kept == [(T2, KeepCopy(TRAINERS[1], Snapshot(6, ("d",)), (0,)))]
    assert not messages(written(bench.leader, CheckpointWritten(6, False, "no space"), bench.now), KeepCopy)


# --- without a majority -----------------------------------------------------------------------------------------------


def left_alone() -> Bench:
    """A leader that only one peer is left of, of the six that the OpenStep named; that one has reduced the step."""
    bench = Bench([*peers(), report(TRAINERS[2])])
    for victim in (T2, B, C):
        bench.leader.handle(Lost(victim, "cut off"), bench.now)
    for index in range(PLAN.microbatches):
        bench.hear(A, done(index))
    assert not messages(bench.hear(A, Prepared(EPOCH, 1, REDUCED)), Commit)
    return bench


def test_without_a_majority_nothing_is_committed_until_it_has_stayed_away_for_long() -> None:
    bench = left_alone()
    assert bench.leader.step is not None
    assert bench.leader.step.phase == "prepared"
    actions = bench.wait(Timeouts().majority_s - 1, A)
    assert not messages(actions, Commit)
    assert not messages(actions, OpenStep)
    actions = bench.wait(1, A)
    assert Count("lineages") in actions
    opened = messages(actions, OpenStep)
    assert [to for to, _ in opened] == [A, ME]
    assert {(message.epoch, message.lineage) for _, message in opened} == {(Epoch(3, 5), "new")}


def test_the_wait_for_a_majority_is_told_once() -> None:
    bench = left_alone()
    assert not [log for log in of_type(bench.wait(20, A), Log) if "most of the swarm" in log.text], "told before"


# --- gradients that do not fit ----------------------------------------------------------------------------------------


def overflow(bench: Bench) -> list[Action]:
    """The peers say so in turn."""
    assert bench.leader.step is not None
    epoch = bench.leader.step.epoch
    return bench.hear((A, B)[epoch.generation % 2], Overflow(replace(microbatch(1), epoch=epoch)))


def test_a_step_whose_gradients_overflow_starts_over_with_a_smaller_exponent() -> None:
    bench = Bench(peers())
    exponents = [20]
    while bench.leader.phase == "running":
        overflow(bench)
        step = bench.leader.step
        if step is not None and bench.leader.phase == "running":
            exponents.append(step.open_step.exponent)
            assert step.epoch == Epoch(2 + len(exponents) - 1, 5)
    assert exponents == list(range(20, EXPONENT_MIN - 1, -EXPONENT_STEP))


def test_a_gradient_that_no_exponent_holds_ends_the_run_at_its_last_version_with_the_reason() -> None:
    bench = Bench(peers())
    assert bench.leader.step is not None
    bench.leader.step.open_step = replace(bench.leader.step.open_step, exponent=EXPONENT_MIN)
    [write] = of_type(overflow(bench), WriteCheckpoint)
    assert write.version == 5
    [left] = of_type(written(bench.leader, CheckpointWritten(5, True, digests=("x",)), bench.now), Exit)
    assert not left.ok
    assert left.reason.startswith("step 5: a gradient of microbatch 5/1 is too large")


def test_the_next_step_begins_with_the_usual_exponent() -> None:
    bench = Bench([replace(reduced(told), commit=COMMIT, digest="same", version=6) for told in peers()])
    assert {message.exponent for _, message in messages(bench.began, OpenStep)} == {DEFAULT_EXPONENT}


def test_two_suspicions_are_a_death_to_the_next_leader_too() -> None:
    bench = Bench(peers())
    assert not messages(bench.hear(A, Suspect(B, "reset")), MemberFailed)
    assert {dead.process for _, dead in messages(bench.hear(C, Suspect(B, "reset")), MemberFailed)} == {B}
