"""Versions are written by their own peers while the run goes on, and copied from their disks afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swarmflow.core.durability.copies import Copies
from swarmflow.core.durability.restoring import Restoring
from swarmflow.core.durability.snapshots import Snapshots, Taken
from swarmflow.core.protocol.actions import Abandon, Action, Exit, Log, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, Lost, SaveAsked
from swarmflow.core.protocol.messages import (
    Committed,
    CopiesHeld,
    Done,
    Join,
    KeepCopy,
    OpenStep,
    Prepared,
    SnapshotTaken,
    StepResult,
    Surplus,
    TakeSnapshot,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Holding, Microbatch, ProcessId, Roster, Snapshot
from tests.core.samples import commits, member, messages, of_type, process, written
from tests.core.test_leader import SETTINGS, A, B
from tests.core.test_leader import Bench as AnyBench

EVERY_STEP = replace(SETTINGS, checkpoint_every=1)
AT_1 = Snapshot(1, ("of stage 0",))
TAKEN = SnapshotTaken(0, 1, "of stage 0")


@dataclass
class Bench(AnyBench):
    """A leader whose peers have room for copies."""

    root: str = "of stage 0"

    def join(self, peer: ProcessId, stage: int = -1, role: str = "peer") -> list[Action]:
        return self.hear(peer, Join(role, "1.0", "run", replace(member(peer.name, stage), process=peer), keeps=True))

    def refuse_to_write(self, actions: list[Action]) -> list[Action]:
        """They have."""
        return []

    def prepared(self) -> list[Action]:
        """Work the step at hand off until its peers have reduced; returns what followed."""
        step = self.leader.step
        assert step is not None
        self.hear(A, Done(Microbatch(step.epoch, 0), 0, FIRST_ATTEMPT, 2.0, 1))
        actions: list[Action] = []
        for peer in [each.process for each in step.roster.peers]:
            actions += self.hear(peer, Prepared(step.epoch, step.ballot.number, (("stage-0", 1.0, "x"),)))
        return actions


def test_a_version_is_written_by_its_peers_and_no_commit_waits_for_it() -> None:
    bench = Bench(EVERY_STEP)
    bench.serve(A, B)
    actions = bench.commit()
    assert messages(actions, TakeSnapshot) == [(A, TakeSnapshot(1)), (B, TakeSnapshot(1))]
    order = [message for _, message in messages(actions, object) if isinstance(message, TakeSnapshot | OpenStep)]
    assert isinstance(order[0], TakeSnapshot), "it comes before the step in which the state changes"
    assert not of_type(actions, WriteCheckpoint)
    assert commits(bench.prepared())


def test_what_the_peers_have_written_is_named_and_copied_from_their_disks() -> None:
    bench = Bench(EVERY_STEP)
    bench.serve(A, B)
    bench.commit()
    assert not bench.hear(A, TAKEN)
    actions = bench.hear(B, TAKEN)
    named = dict(messages(actions, KeepCopy))
    assert {to: (keep.snapshot, keep.stages, keep.whole) for to, keep in named.items()} == {
        A: (AT_1, (0,), False),
        B: (AT_1, (0,), False),
    }
    [write] = of_type(actions, WriteCheckpoint)
    assert (write.version, write.roots) == (1, AT_1.roots)
    assert {holder.process for holder in write.roster.stages[0]} == {A, B}
    assert commits(bench.prepared()), "the copy is made from disks"
    written(bench.leader, CheckpointWritten(1, ok=True, roots=AT_1.roots), 0.0)
    assert (bench.leader.safe.durable, bench.leader.safe.roots) == (1, AT_1.roots)


def test_a_version_is_whole_without_the_writer_that_has_died_or_could_not() -> None:
    for trouble in ("dead", "full"):
        bench = Bench(EVERY_STEP)
        bench.serve(A, B)
        bench.commit()
        bench.hear(A, TAKEN)
        if trouble == "dead":
            bench.leader.handle(Lost(B, "killed"), 0.0)
            actions = bench.leader.handle(Lost(process("nobody"), ""), 100.0)
        else:
            actions = bench.hear(B, SnapshotTaken(0, 1, failed="the disk is full"))
        assert [write.roots for write in of_type(actions, WriteCheckpoint)] == [AT_1.roots], trouble


def test_this_trainer_copies_its_first_version_at_once_and_a_later_one_after_others_or_when_the_next_is_due() -> None:
    """The uplinks of those who have written it are what its copies wait for."""
    for slow in (False, True):
        bench = Bench(replace(SETTINGS, steps=9, checkpoint_every=2))
        bench.serve(A)
        bench.commit()
        bench.commit()
        assert of_type(bench.hear(A, SnapshotTaken(0, 2, "of stage 0")), WriteCheckpoint), "it could not go on without"
        written(bench.leader, CheckpointWritten(2, ok=True, roots=("of stage 0",)), 0.0)
        bench.commit()
        bench.commit()
        bench.join(B, 0)
        bench.ready(B)
        at_4 = Snapshot(4, ("of stage 0",))
        given = bench.hear(A, SnapshotTaken(0, 4, "of stage 0"))
        assert [keep.stages for to, keep in messages(given, KeepCopy) if to == B] == [(0,)]
        assert not of_type(given, WriteCheckpoint)
        assert not of_type(bench.commit(), WriteCheckpoint)
        after = bench.commit() if slow else bench.hear(B, CopiesHeld((Holding(at_4, (0,)),)))
        assert [(write.version, write.roots) for write in of_type(after, WriteCheckpoint)] == [(4, at_4.roots)]


def test_a_version_that_nobody_has_written_when_the_next_is_committed_is_given_up() -> None:
    bench = Bench(EVERY_STEP)
    bench.serve(A)
    bench.commit()
    actions = bench.commit()
    [log] = [log for log in of_type(actions, Log) if "is not kept" in log.text]
    assert log.text == "version 1 is not kept: of a stage, no peer has written it to its disk"
    assert messages(actions, TakeSnapshot) == [(A, TakeSnapshot(2))]
    assert not bench.hear(A, TAKEN), "too late"


def test_a_version_on_whose_state_the_peers_have_not_agreed_is_given_up_for_that() -> None:
    bench = Bench(EVERY_STEP)
    bench.serve(A)
    for _ in range(2):
        epoch = bench.leader.epoch
        bench.committing()
        actions = bench.hear(A, Committed(epoch, epoch.step + 1))
    [text] = [log.text for log in of_type(actions, Log) if "is not kept" in log.text]
    assert text == "version 1 is not kept: of a stage, the peers have not agreed on the state"


def test_where_no_peer_of_a_stage_can_write_the_version_is_copied_from_memory() -> None:
    bench = Bench(EVERY_STEP)
    bench.serve(A)
    bench.commit()
    [write] = of_type(bench.hear(A, SnapshotTaken(0, 1, failed="the disk is full")), WriteCheckpoint)
    assert (write.version, write.roots) == (1, AT_1.roots)
    assert not commits(bench.prepared()), "its peers have to stay at version 1"
    assert commits(written(bench.leader, CheckpointWritten(1, ok=True, roots=("x",)), 0.0))
    [write] = of_type(bench.commit(), WriteCheckpoint)
    assert (write.version, write.roots) == (2, AT_1.roots), "it is not asked again at once"


def test_the_last_version_does_not_wait_for_the_copy_of_an_earlier_one() -> None:
    bench = Bench(replace(EVERY_STEP, steps=2))
    bench.serve(A)
    bench.commit()
    [earlier] = of_type(bench.hear(A, TAKEN), WriteCheckpoint)
    actions = bench.commit()
    [last] = of_type(actions, WriteCheckpoint)
    assert of_type(actions, Abandon) == [Abandon("save")]
    assert (earlier.version, last.version, last.last) == (1, 2, True)
    assert not bench.leader.handle(CheckpointWritten(1, ok=True, number=earlier.number), 0.0), "it was given up"
    assert of_type(written(bench.leader, CheckpointWritten(2, ok=True), 0.0), Exit)


def test_a_save_that_is_asked_for_amid_a_step_holds_nothing_up() -> None:
    bench = Bench(SETTINGS)
    bench.serve(A)
    bench.commit()
    assert messages(bench.leader.handle(SaveAsked(1), 0.0), TakeSnapshot) == [(A, TakeSnapshot(1))]
    bench.hear(A, TAKEN)
    actions = bench.prepared()
    assert commits(actions)
    step = bench.leader.step
    assert step is not None
    assert messages(bench.hear(A, Committed(step.epoch, 2)), StepResult)


def test_peers_copy_from_each_other_before_the_leader_has_the_version() -> None:
    copies = Copies(2)
    a, b = member("a", 0), member("b", 1)
    snapshot = Snapshot(4, ("x", "y"))
    copies.take(Taken(snapshot, (a, b)))
    assert copies.newest_whole() == snapshot
    asked = {to.name: keep for to, keep in messages(copies.spread(snapshot, None, [a, b], 0.0), KeepCopy)}
    assert {name: (keep.stages, keep.holders) for name, keep in asked.items()} == {
        "a": ((1,), ((b,),)),
        "b": ((0,), ((a,),)),
    }
    both = (Holding(snapshot, (0, 1), whole=False),)
    copies.record(a, both)
    assert not copies.kept(a.process, "", 4, 4)
    copies.record(b, both)
    assert [log.text for log in of_type(copies.kept(b.process, "", 4, 4), Log)] == [
        "version 4 is on the disks of others too"
    ]


def test_where_nobody_is_to_copy_anything_earlier_versions_are_deleted_all_the_same() -> None:
    bench = Bench(replace(EVERY_STEP, steps=9))
    bench.serve(A)
    kept = []
    for version in (1, 2, 3):
        bench.commit()
        actions = bench.hear(A, replace(TAKEN, version=version))
        kept += messages(actions, Surplus)
        written(bench.leader, CheckpointWritten(version, ok=True), 0.0)
        snapshot = replace(AT_1, version=version)
        assert not messages(bench.hear(A, CopiesHeld((Holding(snapshot, (0,), whole=False),))), KeepCopy)
    assert kept == [(A, Surplus(1, 1, whole=0)), (A, Surplus(1, 2, whole=0)), (A, Surplus(2, 3, whole=0))]


def test_a_version_that_was_never_whole_elsewhere_is_not_waited_for_without_end() -> None:
    copies = Copies(2)
    copies.record(member("a", 0), (Holding(Snapshot(8, ("x", "y")), (0,), whole=False),))
    restoring = Restoring(0, 0.0, 20.0)
    assert restoring.decide(0, copies, 19.0).version is None
    assert restoring.decide(0, copies, 20.0).version == 0
    copies.record(member("b", 0), (Holding(Snapshot(8, ("x", "y")), (0,)),))
    assert Restoring(0, 0.0, 20.0).decide(0, copies, 1e6).version is None, "it was whole once"


def test_only_a_file_of_the_certified_state_is_one_of_the_snapshot() -> None:
    snapshots = Snapshots(1)
    writers = (member("a", 0), member("b", 0))
    assert len(snapshots.begin(3, Roster((writers,)), writers)) == 2
    snapshots.answered(process("a"), SnapshotTaken(0, 3, "x"))
    snapshots.answered(process("b"), SnapshotTaken(0, 3, "y"))
    taken = snapshots.end(Snapshot(3, ("y",)))
    assert taken is not None
    assert (taken.snapshot.roots, taken.writers) == (("y",), (member("b", 0),))
