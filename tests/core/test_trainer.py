"""The trainer's machine: whom it follows, when it stands itself, and what it does as the next leader."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.pipeline import lateness
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.source import MicrobatchSource
from swarmflow.core.protocol.actions import (
    Action,
    Connect,
    Count,
    Exit,
    Forget,
    FormMicrobatch,
    Record,
    Rejoin,
    WriteCheckpoint,
)
from swarmflow.core.protocol.events import CheckpointWritten, Event, Lost, MicrobatchFormed, Received, Tick
from swarmflow.core.protocol.messages import (
    Assign,
    CopiesHeld,
    Deposed,
    Elect,
    ElectionReport,
    Evicted,
    Finished,
    Heartbeat,
    Join,
    KeepCopy,
    LeaderHeartbeat,
    Left,
    MemberFailed,
    Message,
    OpenStep,
    Prepare,
    Prepared,
    Recall,
    Recalled,
    Refused,
    Released,
    StepResult,
    Suspect,
    Tally,
    Welcome,
)
from swarmflow.core.protocol.types import Epoch, Holding, Member, Microbatch, Plan, ProcessId, Ref, Roster, Snapshot
from swarmflow.core.routing.iwrr import Iwrr
from tests.core.samples import EPOCH, LINEAGE, member, messages, of_type, process

A, B, C = process("a"), process("b"), process("c")
LEADER, SECOND, THIRD, STRANGER = process("t0"), process("t1"), process("t2"), process("x")
PEERS = (member("a"), member("b"), member("c"))
TRAINERS = (member("t0", -1), member("t1", -1), member("t2", -1))
OPENED = OpenStep(1, EPOCH, Roster((PEERS,), TRAINERS), LINEAGE)
PLAN = Plan(1, 3)
SETTINGS = LeaderSettings(4, lambda step: 0.1, 0.0, "1.0", "run", from_seed=True, new_lineage=lambda: "new")
RESULT = StepResult(1, EPOCH, 2.0, 30, 1.0, 0.5, 0.1, 3, (3,), 0)


@dataclass
class Bench:
    """A trainer that follows t0 in term 1; its peers are a, b and c, on the one stage."""

    name: str = "t1"
    lead: bool = False
    now: float = 0.0
    trainer: TrainerMachine = field(init=False)

    def __post_init__(self) -> None:
        me = member(self.name, -1)
        leads = Leader(me, PLAN, SETTINGS, 1, 0, 0) if self.lead else None
        lease = LeaderLease(me.process if self.lead else LEADER, 1)
        source = MicrobatchSource(me.process, PLAN.microbatches, Dispatcher(0, Iwrr()))
        join = Join("trainer", "1.0", "run", me)
        self.trainer = TrainerMachine(me, lease, PLAN, SETTINGS, source, join, lead=leads)
        self.trainer.start(0.0)

    def event(self, event: Event) -> list[Action]:
        return self.trainer.handle(event, self.now)

    def hear(self, message: Message, sender: ProcessId = LEADER) -> list[Action]:
        return self.event(Received(sender, message))

    def join(self) -> list[Action]:
        self.hear(Welcome(1))
        return self.hear(OPENED)

    def lose(self) -> list[Action]:
        return self.event(Lost(LEADER, "reset"))

    def wait(self, seconds: float) -> list[Action]:
        """Let time pass, as a runtime does that wakes the machine at each of its deadlines."""
        actions: list[Action] = []
        until = self.now + seconds
        while (due := max(self.now, self.trainer.next_deadline())) <= until:
            self.now = due if due > self.now else self.now + 0.1
            actions += self.event(Tick())
        self.now = until
        return actions + self.event(Tick())


def lease(who: Member, term: int = 2, opened: OpenStep = OPENED) -> ElectionReport:
    role = "peer" if who.stage >= 0 else "trainer"
    return ElectionReport(term, Join(role, "1.0", "run", who), who, True, opened.epoch.step, False, opened)


def elected() -> tuple[Bench, list[Action]]:
    """Trainer t1, which leads in term 2 after the peers have answered, and what it did then."""
    bench = Bench()
    bench.join()
    bench.lose()
    for peer in PEERS:
        bench.hear(lease(peer), peer.process)
    return bench, bench.wait(3.0)


# --- as one that follows ----------------------------------------------------------------------------------------------


def test_it_joins_until_it_is_heard_and_takes_up_its_share() -> None:
    bench = Bench()
    assert [to for to, _ in messages(bench.wait(5.0), Join)] == [LEADER]
    formed = of_type(bench.join(), FormMicrobatch)
    assert [action.microbatch.index for action in formed] == [1]
    assert not messages(bench.wait(20.0), Join)


def test_what_was_assigned_in_this_epoch_is_taken_up() -> None:
    bench = Bench()
    bench.join()
    formed = of_type(bench.hear(Assign(1, EPOCH, (2,), 1)), FormMicrobatch)
    assert [action.microbatch.index for action in formed] == [2]
    assert bench.hear(Assign(1, Epoch(0, 9), (0,), 1)) == []
    assert bench.hear(Assign(2, EPOCH, (0,), 1), THIRD) == [Count("messages_ignored", "Assign")]


def test_a_result_told_twice_is_recorded_once() -> None:
    bench = Bench()
    bench.join()
    assert of_type(bench.hear(RESULT), Record) == [Record(RESULT)]
    assert not of_type(bench.hear(replace(RESULT, term=2)), Record)
    assert of_type(bench.hear(replace(RESULT, epoch=Epoch(0, 1))), Record)


def test_what_is_on_the_leaders_disk_is_copied_to_its_own_once() -> None:
    bench = Bench()
    bench.join()
    keep = KeepCopy(Snapshot(2, ("d",)), (0,), ((TRAINERS[0],),))
    actions = bench.hear(keep)
    [write] = of_type(actions, WriteCheckpoint)
    assert (write.version, write.roster.stages, write.roots) == (2, ((TRAINERS[0],),), ("d",))
    assert of_type(actions, Connect) == [Connect((TRAINERS[0],))]
    failed = messages(bench.event(CheckpointWritten(2, ok=False, reason="no space")), CopiesHeld)
    assert failed == [(LEADER, CopiesHeld((), "no space"))]
    assert bench.trainer.on_disk == 0
    kept = messages(bench.event(CheckpointWritten(2, ok=True, roots=("d",))), CopiesHeld)
    assert kept == [(LEADER, CopiesHeld((Holding(Snapshot(2, ("d",)), (0,)),)))]
    assert bench.trainer.on_disk == 2
    assert not of_type(bench.hear(keep), WriteCheckpoint)
    other = KeepCopy(Snapshot(2, ("of another history",)), (0,), ((TRAINERS[0],),))
    assert of_type(bench.hear(other), WriteCheckpoint), "two versions of one number do not fit together"
    assert bench.hear(keep, A) == [Count("messages_ignored", "KeepCopy")]


def test_a_lost_peer_is_told_and_remembered_for_the_next_leader() -> None:
    bench = Bench()
    bench.join()
    [(to, suspect)] = messages(bench.event(Lost(A, "reset")), Suspect)
    assert (to, suspect.process, suspect.refused) == (LEADER, A, False)
    assert not messages(bench.event(Lost(STRANGER, "reset")), Suspect)
    bench.wait(4.0)
    [(_, report)] = messages(bench.hear(Elect(2, TRAINERS[2]), THIRD), ElectionReport)
    assert report.suspects == (A,)


def test_it_answers_no_question_for_what_a_trainer_never_has() -> None:
    """The answer could not be true, and whoever asks would put the trainer out for it."""
    bench, first = Bench(), Microbatch(EPOCH, 0)
    bench.join()
    assert messages(bench.hear(Recall(first, -1, gradient=False), A), Recalled)
    for peer, question in ((A, Recall(first, -1, gradient=True)), (B, Recall(first, 0, gradient=False))):
        actions = bench.hear(question, peer)
        assert not messages(actions, Recalled)
        assert [(told.process, told.refused) for _, told in messages(actions, Suspect)] == [(peer, True)]
        assert of_type(actions, Forget) == [Forget(peer)]


@pytest.mark.parametrize(("message", "ok"), [(Released(), True), (Finished(4), True), (Refused("install"), False)])
def test_the_leader_lets_it_go(message: Message, ok: bool) -> None:
    bench = Bench()
    bench.join()
    assert [left.ok for left in of_type(bench.hear(message), Exit)] == [ok]
    assert not of_type(bench.wait(60.0), Exit), "an ended machine does nothing"


def test_a_trainer_counts_each_trainer_that_dies_once_and_no_peer() -> None:
    bench = Bench()
    bench.join()
    senders = []
    for dead in (A, A, THIRD, THIRD, STRANGER):
        bench.hear(MemberFailed(1, EPOCH, dead, "silent"))
        senders.append(bench.trainer.source.dispatcher.senders)
    assert senders == [3, 3, 2, 2, 2]


@pytest.mark.parametrize("message", [Evicted("out"), MemberFailed(1, EPOCH, SECOND, "silent")])
def test_who_is_taken_for_dead_joins_again(message: Message) -> None:
    bench = Bench()
    bench.join()
    assert not of_type(bench.hear(message, STRANGER), Rejoin)
    assert of_type(bench.hear(message), Rejoin)


# --- without a leader -------------------------------------------------------------------------------------------------


# --- as the next leader -----------------------------------------------------------------------------------------------


def test_who_has_to_join_again_does_nothing_more() -> None:
    bench = Bench()
    [form] = of_type(bench.join(), FormMicrobatch)
    bench.event(MicrobatchFormed(form.microbatch, Ref(1), Ref(2)))
    late_s = lateness.next_deadline(bench.trainer.source.dispatcher)
    assert late_s is not None
    bench.now = late_s + 1.0  # the microbatch is to be asked for, which is another life's
    assert isinstance(bench.hear(Evicted("it is gone"))[-1], Rejoin)


def test_a_leader_needs_no_copy_of_its_own() -> None:
    bench, _ = elected()
    assert not of_type(bench.hear(KeepCopy(Snapshot(5, ("d",)), (0,), ((TRAINERS[1],),)), SECOND), WriteCheckpoint)


def test_a_former_leader_is_told_that_it_is_one() -> None:
    bench = Bench()
    bench.join()
    bench.wait(4.0)
    bench.hear(Elect(2, TRAINERS[2]), THIRD)
    assert messages(bench.hear(LeaderHeartbeat(1, EPOCH)), Deposed) == [(LEADER, Deposed(2))]
    assert not of_type(bench.hear(RESULT), Record)
    assert of_type(bench.hear(replace(RESULT, term=2), THIRD), Record)
    assert {message.term for _, message in messages(bench.wait(14.0), Elect)} == {3}, "it looks after the new leader"


def test_a_link_from_the_leader_that_loses_messages_has_it_join_again() -> None:
    bench = Bench()
    bench.join()
    assert of_type(bench.hear(LeaderHeartbeat(1, EPOCH, sent=3)), Rejoin) == []
    assert of_type(bench.hear(LeaderHeartbeat(1, EPOCH, sent=5)), Rejoin), "four have come"


def test_a_leader_that_has_missed_a_message_gives_its_sender_up_and_tells_it_so() -> None:
    bench = Bench("t0", lead=True)
    bench.hear(Join("trainer", "1.0", "run", TRAINERS[1]), SECOND)
    assert not messages(bench.hear(Heartbeat(sent=2), SECOND), Evicted)
    for _ in range(2):  # nor does it forget to tell one that it has forgotten
        assert messages(bench.hear(Heartbeat(sent=9), SECOND), Evicted)


def test_a_trainer_promises_each_ballot_and_reports_it_to_the_next_leader() -> None:
    bench = Bench()
    bench.join()
    tally = Tally(2.0, 30, 0)
    assert messages(bench.hear(Prepare(1, EPOCH, 3, (), (), tally)), Prepared) == [(LEADER, Prepared(EPOCH, 3, ()))]
    assert not messages(bench.hear(Prepare(1, Epoch(9, 9), 4, (), (), tally)), Prepared), "of no epoch that it knows"
    assert bench.trainer.epoch_view is not None
    assert (bench.trainer.epoch_view.ballot, bench.trainer.epoch_view.tally) == (3, tally)


def test_the_last_message_of_a_trainer_that_is_let_go_binds_it_to_its_leader() -> None:
    bench = Bench()
    bench.join()
    assert messages(bench.hear(Released()), Left) == [(LEADER, Left(1))]
    bench = Bench()
    bench.join()
    bench.lose()
    assert not messages(bench.wait(PLAN.timeouts.majority_s + 10.0), Left), "it may have promised another one"
