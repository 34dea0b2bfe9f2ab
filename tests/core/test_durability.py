"""What is done about a version that cannot be written, and when a run must not go on without a copy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from swarmflow.core.durability.copies import Copies
from swarmflow.core.durability.snapshots import Snapshots
from swarmflow.core.durability.versions import RETRY_S_MAX, Durability
from swarmflow.core.protocol.actions import Action, Count, Exit, Log, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, DiskChanged, DiskSpace, Lost, Progressed, SaveAsked, Tick
from swarmflow.core.protocol.messages import (
    CopiesHeld,
    Drain,
    Finished,
    Granted,
    Heartbeat,
    KeepCopy,
    LoadFailed,
    Released,
    Surplus,
)
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import Holding, Roster, Snapshot
from tests.core import test_leader
from tests.core.samples import messages, of_type, process, written
from tests.core.test_leader import ME, SETTINGS, A, B

C = process("c")
RETRY_S = Timeouts().silence_s
VERSION = 4
NO_ROOM = DiskSpace("/disk", 1000, 10)
FULL = "a checkpoint needs 1000 bytes in /disk, where 10 bytes are free: make 990 bytes free there"


def safe() -> Durability:
    return Durability(0, RETRY_S, Copies(1), Snapshots(1), 0)


def fail(safe: Durability, now: float, disturbed: bool = False, space: DiskSpace | None = None) -> list[Action]:
    """One more try to write a version fails at `now`; what is told."""
    safe.write(VERSION, Roster(((),), ()), last=True, roots=("d",))
    if disturbed:
        safe.disturbed()
    return safe.written(CheckpointWritten(VERSION, ok=False, reason=f"it failed at {now}", space=space), now)


def test_a_known_death_is_a_reason_to_try_at_once() -> None:
    safe_ = safe()
    fail(safe_, 1.0, disturbed=True)
    assert safe_.due_again(1.0)
    fail(safe_, 1.0)
    assert not safe_.due_again(1.0 + RETRY_S - 0.1), "others may have died with that one: time to hear of it"
    assert safe_.due_again(1.0 + RETRY_S)


def test_what_fails_for_no_known_reason_is_tried_ever_more_seldom_and_a_full_disk_all_the_time() -> None:
    safe_, now, waits = safe(), 1.0, []
    for _ in range(6):
        fail(safe_, now)
        assert safe_.again_s is not None
        waits.append(safe_.again_s - now)
        now = safe_.again_s
    assert waits == [8.0, 16.0, 32.0, 64.0, RETRY_S_MAX, RETRY_S_MAX]
    fail(safe_, now, space=NO_ROOM)
    assert safe_.again_s == now + RETRY_S, "to ask it costs nothing"


def test_one_reason_is_told_once_whatever_its_numbers() -> None:
    safe_ = safe()
    assert [len(fail(safe_, now)) for now in (1.0, 2.5, 30.0)] == [1, 0, 0]
    [log] = safe_.written(CheckpointWritten(VERSION, ok=False, reason="read-only"), 40.0)
    assert isinstance(log, Log)
    assert log.level == "warning"
    assert [log.level for log in of_type(safe_.written(CheckpointWritten(VERSION, ok=True), 50.0), Log)] == ["info"]
    assert safe_.again_s is None
    assert len(fail(safe_, 60.0)) == 1


def test_a_run_that_went_back_tries_nothing_again() -> None:
    safe_ = safe()
    fail(safe_, 1.0)
    safe_.went_back()
    assert not safe_.due_again(1000.0)
    assert safe_.holds_up(1000) == ""


# --- the run ----------------------------------------------------------------------------------------------------------


@dataclass
class Bench(test_leader.Bench):
    """A run of one stage with a checkpoint every second step, whose leader's disk is full until `room` is made."""

    room: bool = False
    tries: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = replace(self.settings, steps=40, checkpoint_every=2)
        super().__post_init__()
        self.serve(A)

    def answered(self, actions: list[Action]) -> list[Action]:
        """What follows from these actions when the disk has answered."""
        actions = actions + self.refuse_to_write(actions)
        for write in of_type(actions, WriteCheckpoint):
            self.tries.append(write.version)
            written = CheckpointWritten(write.version, self.room, "" if self.room else FULL, roots=("d",) * self.room)
            if not self.room:
                written = replace(written, space=NO_ROOM)
            actions = actions + self.answered(self.leader.handle(replace(written, number=write.number), self.now))
        return actions

    def steps(self, most: int) -> list[Action]:
        """So many steps, or as many as are opened."""
        actions: list[Action] = []
        for _ in range(most):
            if self.leader.step is None:
                break
            actions += self.answered(self.commit())
        return actions

    def wait(self, seconds: int) -> list[Action]:
        actions: list[Action] = []
        for _ in range(seconds):
            self.now += 1.0
            actions += self.answered(
                self.hear(A, Heartbeat(epoch=self.leader.epoch)) + self.leader.handle(Tick(), self.now)
            )
        return actions


def test_a_run_pauses_when_more_than_checkpoint_every_steps_are_on_no_disk() -> None:
    bench = Bench()
    actions = bench.steps(10)
    assert bench.leader.version == 3, "2 steps may be at stake, and the one that was at work as that was known"
    assert bench.tries == [2, 3]
    assert bench.leader.step is None
    assert bench.leader.waiting_for == (
        f"a disk that takes a copy of version 3 (the newest one is of version 0): {FULL}"
    )
    [paused] = [log for log in of_type(actions, Log) if "the run pauses" in log.text]
    assert (paused.level, FULL in paused.text) == ("warning", True)
    assert Count("pauses") in actions


def test_a_paused_run_asks_the_disk_by_itself_and_goes_on_when_there_is_room() -> None:
    bench = Bench()
    bench.steps(10)
    waited = bench.wait(4 * int(RETRY_S))
    assert bench.tries == [2, 3, 3, 3, 3, 3]
    assert bench.leader.step is None
    assert not of_type(waited, Log), "it was told once"
    bench.room = True
    bench.wait(int(RETRY_S))
    assert bench.leader.step is not None
    bench.steps(10)
    assert bench.leader.version == 13
    assert bench.leader.safe.durable == 12


def test_a_copy_on_another_disk_is_as_good() -> None:
    bench = Bench()
    bench.steps(10)
    bench.join(B, 0)
    assert bench.leader.step is None
    bench.hear(B, CopiesHeld((Holding(Snapshot(2, ("x",)), (0,)),)))
    assert bench.leader.step is not None


@pytest.mark.parametrize("by", ["another peer", "this trainer"])
def test_who_alone_has_a_copy_of_a_stage_leaves_when_others_have_it(by: str) -> None:
    bench = Bench()
    bench.join(B, 0)
    copy = CopiesHeld((Holding(Snapshot(2, ("x",)), (0,)),))
    fetching = bench.hear(B, copy)
    waits = bench.hear(B, Drain())
    assert not messages(waits, Released)
    assert any("leaves when others have its copy of stage 0" in log.text for log in of_type(waits, Log))
    assert not of_type(bench.hear(B, Drain()), Log), "it is told once"
    if by == "this trainer":
        bench.room = True
        after = bench.answered(fetching)
    else:
        bench.join(C, 0)
        after = bench.hear(C, copy)
    assert [to for to, _ in messages(after, Released)] == [B]


def test_a_disk_that_hangs_pauses_the_run_like_a_full_one() -> None:
    """Its write never fails: it is as bad as a failure once it has stood still for long."""
    bench = Bench()
    for _ in range(2):
        write = of_type(bench.commit(), WriteCheckpoint)
    bench.leader.handle(Progressed("save", version=2), bench.now)
    for _ in range(3):
        assert not of_type(bench.commit(), WriteCheckpoint)
    assert bench.leader.version == 5, "a write may take its time"
    warned = [log.text for log in of_type(bench.wait(130), Log) if log.level == "warning"]
    assert any("see to the disk" in text for text in warned)
    paused = of_type(bench.commit(), Log)
    assert bench.leader.step is None
    lack = "a disk that takes a copy of version 6 (the newest one is of version 0): the write of version 2 does not end"
    assert bench.leader.waiting_for == lack
    assert [log.text for log in paused if log.level == "warning"] == [f"the run pauses and waits for {lack}"]
    assert not [log for log in of_type(bench.wait(20), Log) if "the run pauses" in log.text], "it was told once"
    [begun] = write
    bench.leader.handle(CheckpointWritten(2, True, roots=("d",), number=begun.number), bench.now)
    assert bench.leader.step is not None


def test_what_is_lost_while_a_run_is_paused_goes_back_and_is_no_reason_to_pause() -> None:
    bench = Bench()
    bench.steps(10)
    actions = bench.leader.handle(Lost(A, "killed"), bench.now)
    assert Count("rollbacks") in actions
    assert bench.leader.waiting_for == "a peer for stage 0"
    assert bench.leader.version == 0


def test_a_full_disk_at_the_end_is_waited_for() -> None:
    bench = Bench(replace(SETTINGS, steps=4))
    bench.settings = bench.leader.settings
    bench.leader.settings = replace(bench.settings, steps=3)
    bench.steps(10)
    assert bench.leader.phase == "finished"
    assert FULL in bench.leader.waiting_for
    bench.room = True
    end = bench.wait(int(RETRY_S))
    assert [to for to, _ in messages(end, Finished)] == [A]
    assert [action.ok for action in of_type(end, Exit)] == [True]


def test_an_output_that_cannot_be_written_is_waited_for_too() -> None:
    bench = Bench()
    bench.leader.settings = replace(bench.settings, steps=1)
    bench.commit()
    in_the_way = CheckpointWritten(1, True, "final holds something else", ("d",), exported=False)
    assert not of_type(written(bench.leader, in_the_way, bench.now), Exit)
    assert "final holds something else" in bench.leader.waiting_for
    assert bench.leader.safe.durable == 1
    bench.room = True
    assert of_type(bench.wait(int(RETRY_S)), Exit)[0].ok


def test_a_save_that_somebody_asks_for_is_tried_no_more_often_than_any() -> None:
    bench = Bench()
    bench.commit()
    bench.answered(bench.leader.handle(SaveAsked(1), bench.now))
    bench.wait(int(RETRY_S) - 1)
    assert bench.tries == [1]
    bench.wait(2)
    assert bench.tries == [1, 1]


# --- a disk that loses what it had ------------------------------------------------------------------------------------


def test_a_version_that_became_corrupt_is_written_again_at_the_next_edge() -> None:
    bench = Bench(room=True)
    bench.steps(4)
    bench.steps(1)
    assert bench.leader.safe.durable == 4
    told = bench.leader.handle(DiskChanged(2, "stage-0 is corrupt", ("d",)), bench.now)
    assert ["stage-0 is corrupt" in log.text for log in of_type(told, Log)] == [True]
    bench.steps(1)
    assert bench.tries == [2, 4, 6]
    bench.leader.handle(DiskChanged(2, "stage-0 is corrupt", ("d",)), bench.now)
    bench.steps(1)
    assert bench.tries == [2, 4, 6, 7], "not only at the next version of its turn"


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_version_that_was_gone_back_to_and_is_corrupt_comes_from_others_or_is_the_one_before(elsewhere: bool) -> None:
    bench = Bench(room=True)
    bench.steps(4)
    [(_, granted)] = messages(bench.join(B, 0), Granted)
    if elsewhere:
        bench.hear(B, CopiesHeld((Holding(Snapshot(4, ("d",)), (0,)),)))
    bench.leader.handle(Lost(A, "killed"), bench.now)
    bench.leader.handle(DiskChanged(2, "stage-0 is corrupt", ("d",)), bench.now)
    actions = bench.answered(bench.hear(B, LoadFailed(0, 4, "the donor's file is corrupt", granted.grant)))
    for _ in range(int(Timeouts().copies_s) + 1):
        bench.now += 1.0
        actions += bench.answered(bench.hear(B, Heartbeat()) + bench.leader.handle(Tick(), bench.now))
    again = [message for _, message in messages(actions, Granted)]
    assert again[-1].version == (4 if elsewhere else 2)


def test_an_earlier_version_of_the_own_disk_is_not_spread_over_a_later_one_of_others() -> None:
    """Else they would delete the later one as surplus when they have it."""
    safe_ = Durability(4, RETRY_S, Copies(1), Snapshots(1), 8, roots=("old",))
    holder = replace(ME, process=process("b"), stage=0)
    assert safe_.spread(ME, [holder], 0.0)
    safe_ = Durability(4, RETRY_S, Copies(1), Snapshots(1), 8, roots=("old",))
    safe_.copies.record(holder, (Holding(Snapshot(8, ("new",)), (0,)),))
    assert not messages(safe_.spread(ME, [holder], 0.0), KeepCopy)


def test_what_is_left_of_a_version_on_the_own_disk_counts_with_what_others_hold() -> None:
    copies = Copies(2)
    safe_ = Durability(8, RETRY_S, copies, Snapshots(1), 8, roots=("a", "b"))
    at_8 = Snapshot(8, ("a", "b"))
    copies.record(replace(ME, process=process("b"), stage=0), (Holding(at_8, (1,)),))
    safe_.lost(DiskChanged(4, "stage-1 is corrupt", ("c", "d"), (Holding(at_8, (0,)),)), ME)
    assert copies.newest_whole() == at_8
    assert (safe_.durable, safe_.roots) == (4, ("c", "d"))


@pytest.mark.parametrize("written_before", [0, 2])
def test_where_peers_write_no_versions_any_more_earlier_ones_are_deleted_all_the_same(written_before: int) -> None:
    """The leader copies all from memory, since a stage's disks are full; others keep what it has written."""
    holder, copies = replace(ME, process=process("b"), stage=0), Copies(1)
    safe_ = Durability(0, RETRY_S, copies, Snapshots(1), 0)
    safe_.snapshots.taken = Snapshot(written_before, ("taken",)) if written_before else None
    kept, told = list[Holding](), list[tuple[int, int]]()
    for version in (4, 8, 12):
        safe_.durable, safe_.roots = version, (f"at {version}",)
        assert messages(safe_.spread(ME, [holder], 0.0), KeepCopy)
        kept.append(Holding(Snapshot(version, safe_.roots), (0,)))
        copies.record(holder, kept)
        answered = copies.kept(holder.process, "", *safe_.in_use)
        told += [(surplus.oldest, surplus.newest) for _, surplus in messages(answered, Surplus)]
    assert told == [(4, 4), (4, 8), (8, 12)]
