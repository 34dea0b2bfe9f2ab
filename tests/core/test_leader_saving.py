"""A leader brings versions to disk, validates them, and ends the run with the last one."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.protocol.actions import Abandon, Exit, Send, Validate, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, Lost, Progressed, SaveAsked, Validated
from swarmflow.core.protocol.messages import (
    Committed,
    Done,
    Drain,
    Finished,
    Granted,
    KeepCopy,
    Prepared,
    StateRoot,
    StepResult,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Microbatch, Snapshot
from tests.core.samples import messages, microbatch, of_type, process, written
from tests.core.test_leader import ME, OTHER, SETTINGS, A, B, Bench


def test_checkpoints_are_written_at_their_versions_and_hold_the_next_commit() -> None:
    bench = Bench(replace(SETTINGS, checkpoint_every=1))
    bench.serve(A)
    [write] = of_type(bench.commit(), WriteCheckpoint)
    assert (write.version, write.last) == (1, False)
    epoch = microbatch(0).epoch._replace(step=1)
    bench.hear(A, Done(Microbatch(epoch, 0), 0, FIRST_ATTEMPT, 2.0, 1))
    assert len(of_type(bench.hear(A, Prepared(epoch, 1, (("stage-0", 1.0, "x"),))), Send)) == 0
    commit = of_type(written(bench.leader, CheckpointWritten(1, ok=True), 0.0), Send)
    assert [send.to for send in commit] == [A]
    assert bench.leader.safe.durable == 1


def test_a_trainer_that_joins_later_copies_what_is_on_the_leaders_disk() -> None:
    bench = Bench(replace(SETTINGS, checkpoint_every=1))
    bench.serve(A)
    assert not messages(bench.join(process("t2"), role="trainer"), KeepCopy), "there is nothing yet"
    bench.commit()
    written(bench.leader, CheckpointWritten(1, ok=True, roots=("root",)), 0.0)
    [(to, copy)] = messages(bench.join(OTHER, role="trainer"), KeepCopy)
    assert (to, copy.snapshot, copy.holders) == (OTHER, Snapshot(1, ("root",)), ((ME,),))


def test_a_copy_that_was_begun_for_a_former_leader_does_not_end_the_one_being_written() -> None:
    bench = Bench(replace(SETTINGS, checkpoint_every=1))
    bench.serve(A)
    bench.commit()
    safe = bench.leader.safe
    seen = [safe.saving]
    for event in (CheckpointWritten(1, ok=False, reason="the former leader is dead"), CheckpointWritten(1, ok=True)):
        bench.leader.handle(event, 0.0)
        seen.append(safe.saving)
    written(bench.leader, CheckpointWritten(1, ok=True), 0.0)
    assert [*seen, safe.saving] == [1, 1, 1, None], "nothing is committed before it is written"
    assert safe.durable == 1


def test_a_version_that_is_nearly_on_disk_is_gone_back_to_and_not_an_earlier_one() -> None:
    bench = Bench(replace(SETTINGS, checkpoint_every=1))
    bench.serve(A)
    bench.commit()
    bench.leader.handle(Progressed("save", version=1), 0.0)
    bench.leader.handle(Lost(A, "killed"), 0.0)
    assert bench.leader.version == 1
    assert bench.leader.waiting_for == "version 1 to be on disk, to go back to that one"
    written(bench.leader, CheckpointWritten(1, ok=True), 0.0)
    assert [message.version for _, message in messages(bench.join(B), Granted)] == [1]


def test_what_is_written_of_a_history_that_was_given_up_is_not_taken_for_the_next_one() -> None:
    bench = Bench(replace(SETTINGS, checkpoint_every=1))
    bench.serve(A)
    bench.commit()
    late = CheckpointWritten(1, ok=True, number=bench.leader.safe.number)
    lost = bench.leader.handle(Lost(A, "killed"), 0.0)
    assert (bench.leader.version, of_type(lost, Abandon)) == (0, [Abandon("save")])
    bench.serve(B)
    [again] = of_type(bench.commit(), WriteCheckpoint)
    assert again.version == late.version
    bench.leader.handle(late, 0.0)
    assert (bench.leader.safe.durable, bench.leader.safe.saving) == (0, 1)


def test_a_save_amid_the_last_validation_does_not_end_the_run_without_its_model() -> None:
    bench = Bench(replace(SETTINGS, steps=1, validate_every=1))
    bench.serve(A)
    bench.commit()
    [asked] = of_type(bench.refuse_to_write(bench.leader.handle(SaveAsked(1), 0.0)), WriteCheckpoint)
    assert not asked.last
    bench.leader.handle(Validated(1, 2.0), 0.0)
    saved = written(bench.leader, CheckpointWritten(1, ok=True), 0.0)
    assert [write.last for write in of_type(saved, WriteCheckpoint)] == [True]
    assert not of_type(saved, Exit)
    assert of_type(written(bench.leader, CheckpointWritten(1, ok=True), 0.0), Exit)[0].ok


def test_the_run_ends_when_the_last_version_is_written() -> None:
    bench = Bench(replace(SETTINGS, steps=1))
    bench.serve(A)
    [write] = of_type(bench.commit(), WriteCheckpoint)
    assert (write.version, write.last) == (1, True)
    actions = written(bench.leader, CheckpointWritten(1, ok=True), 0.0)
    assert [to for to, _ in messages(actions, Finished)] == [A]
    assert of_type(actions, Exit)[0].ok


def test_stopping_writes_what_was_learnt() -> None:
    bench = Bench()
    bench.serve(A)
    bench.commit()
    [write] = of_type(bench.leader.stop(), WriteCheckpoint)
    assert write.version == 1
    assert of_type(written(bench.leader, CheckpointWritten(1, ok=True), 0.0), Exit)[0].ok


def test_who_stops_and_cannot_write_what_was_learnt_says_so_and_what_is_on_disk() -> None:
    bench = Bench()
    bench.serve(A)
    bench.commit()
    bench.leader.stop()
    [end] = of_type(written(bench.leader, CheckpointWritten(1, ok=False, reason="the disk is full"), 0.0), Exit)
    why = "which could not be written (the disk is full): no version is on disk"
    assert end == Exit(f"stopped at version 1, {why}; start it again to go on", ok=False)


def test_stopping_in_the_middle_of_an_update_waits_for_it() -> None:
    bench = Bench(replace(SETTINGS, checkpoint_every=1))
    bench.serve(A)
    epoch = microbatch(0).epoch
    bench.hear(A, Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1))
    bench.hear(A, Prepared(epoch, 1, (("stage-0", 1.0, "x"),)))
    assert not of_type(bench.leader.stop(), WriteCheckpoint)
    actions = bench.hear(A, Committed(epoch, 1))
    assert messages(actions, StepResult)
    assert not of_type(actions, WriteCheckpoint), "it is not known yet what the state has to be"
    [write] = of_type(bench.hear(A, StateRoot(0, 1, "root")), WriteCheckpoint)
    assert (write.version, write.roots) == (1, ("root",))


def test_a_validated_step_is_reported_with_its_validation_loss_even_if_somebody_leaves() -> None:
    bench = Bench(replace(SETTINGS, validate_every=1))
    bench.serve(A)
    actions = bench.commit()
    assert of_type(actions, Validate)
    assert not messages(actions, StepResult)
    bench.hear(A, Drain())
    [(_, result)] = messages(bench.leader.handle(Validated(1, 1.5), 0.0), StepResult)
    assert result.validation_loss == 1.5


def test_a_death_amid_the_validation_has_it_measured_on_the_others() -> None:
    bench = Bench(replace(SETTINGS, validate_every=1))
    bench.serve(A, B)
    bench.commit()
    [again] = of_type(bench.leader.handle(Lost(B, "gone"), 0.0), Validate)
    assert again.roster.ids == (A, *(t.process for t in again.roster.trainers))
    actions = bench.leader.handle(Lost(A, "gone"), 0.0)
    assert not of_type(actions, Validate)
    [(_, result)] = messages(actions, StepResult)
    assert result.validation_loss is None
    assert bench.leader.phase == "gathering"
    assert messages(bench.leader.handle(Validated(1, 1.5), 0.0), StepResult) == []


def test_who_takes_no_part_in_a_validation_and_dies_does_not_make_it_begin_again() -> None:
    bench = Bench(replace(SETTINGS, validate_every=1))
    bench.serve(A)
    bench.commit()
    bench.join(B)
    assert not of_type(bench.leader.handle(Lost(B, "killed"), 0.0), Validate)
    assert bench.leader.phase == "validating"


def test_a_validation_amid_which_one_peer_after_the_other_dies_is_left_out() -> None:
    bench = Bench(replace(SETTINGS, validate_every=1))
    peers = [process(f"p{number}") for number in range(7)]
    bench.serve(*peers)
    bench.commit()
    again = [len(of_type(bench.leader.handle(Lost(peer, "killed"), 0.0), Validate)) for peer in peers[:5]]
    assert again == [1, 1, 1, 1, 0]
    assert bench.leader.phase == "running"
