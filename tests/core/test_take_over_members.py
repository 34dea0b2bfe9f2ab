"""A leader that takes over knows who is there, who loads, who leaves and who is suspected."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.protocol.actions import Count, Exit, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten
from swarmflow.core.protocol.messages import (
    Evicted,
    Granted,
    Heartbeat,
    KeepCopy,
    MemberFailed,
    OpenStep,
    Ready,
    Released,
    SnapshotTaken,
    Suspect,
    TakeSnapshot,
)
from swarmflow.core.protocol.types import Epoch, Snapshot
from tests.core.samples import messages, of_type, written
from tests.core.taken_over import (
    COMMIT,
    EPOCH,
    ME,
    OPENED,
    PEERS,
    SETTINGS,
    T0,
    T2,
    TRAINERS,
    A,
    B,
    Bench,
    C,
    peers,
    reduced,
    report,
)


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
    told = [replace(reduced(told), commit=COMMIT, applied=True, version=6) for told in peers()]
    told[0] = replace(told[0], draining=True)
    assert [to for to, _ in messages(Bench(told).began, Released)] == [A]


def test_one_that_was_asked_to_go_before_it_led_writes_the_version_first() -> None:
    told = [replace(reduced(told), commit=COMMIT, applied=True, version=6) for told in peers()]
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
    told = replace(report(PEERS[2]), ready=False, version=-1, root="")
    bench = Bench([*peers(C), told])
    [(to, granted)] = messages(bench.began, Granted)
    assert (to, granted.term, granted.stage, granted.version) == (C, 4, 0, 5)
    assert [donor.process for donor in granted.donors] == [A, B]
    assert bench.leader.membership.known[C].phase == "loading"
    bench.hear(C, Ready(0, 5, "root", 4, grant=-1))
    assert bench.leader.membership.known[C].phase == "loading", "the answer to a grant of the former leader"
    bench.hear(C, Ready(0, 5, "root", 4, granted.grant))
    assert bench.leader.membership.known[C].phase == "ready"


def test_the_expelled_are_told_and_suspects_have_to_show_that_they_live() -> None:
    told = peers()
    told[0] = replace(told[0], suspects=(B, C), gone=(T2,))
    told[2] = replace(told[2], gone=(T2,))
    bench = Bench([*told, report(TRAINERS[2])])
    assert {dead.process for _, dead in messages(bench.began, MemberFailed)} == {T0, T2}
    assert {to for to, _ in messages(bench.began, Evicted)} == {T2}
    assert {dead.process for _, dead in messages(bench.wait(4.0, A, C), MemberFailed)} == {B}
    assert sorted(bench.leader.membership.known) == [A, C, ME]


def test_whom_two_have_lost_has_to_show_that_it_lives() -> None:
    told = peers()
    told[0], told[2] = replace(told[0], suspects=(B,)), replace(told[2], suspects=(B,))
    assert not messages(Bench(told).wait(4.0, A, B, C), Evicted)
    assert {to for to, _ in messages(Bench(told).wait(4.0, A, C), Evicted)} == {B}


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
    applied = [replace(reduced(told), commit=COMMIT, applied=True, version=6) for told in peers()]
    bench = Bench([*applied, report(TRAINERS[2])], settings=replace(SETTINGS, checkpoint_every=2))
    asked = [to for to, _ in messages(bench.began, TakeSnapshot)]
    answers = [bench.hear(to, SnapshotTaken(0, 6, failed="the disk is full")) for to in asked]
    assert [write.version for answer in answers for write in of_type(answer, WriteCheckpoint)] == [6]
    kept = messages(written(bench.leader, CheckpointWritten(6, ok=True, roots=("d",)), bench.now), KeepCopy)
    assert kept == [(T2, KeepCopy(Snapshot(6, ("d",)), (0,), ((TRAINERS[1],),)))]
    assert not messages(written(bench.leader, CheckpointWritten(6, False, "no space"), bench.now), KeepCopy)


def test_two_suspicions_are_a_death_to_the_next_leader_if_the_accused_is_silent() -> None:
    bench = Bench(peers())
    assert not messages(bench.hear(A, Suspect(B, "reset")), MemberFailed)
    assert not messages(bench.hear(C, Suspect(B, "reset")), MemberFailed)
    assert {dead.process for _, dead in messages(bench.wait(4.0, A, C), MemberFailed)} == {B}
