"""A peer keeps the copies that its leader asks for, and says what lies on its disk."""

from __future__ import annotations

import pytest

from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.protocol.actions import Action, Connect, Count, DropCopies, KeepCopies, WriteStage
from swarmflow.core.protocol.events import CopiesChanged, Event, Received, StageWritten, StateLoaded, Tick
from swarmflow.core.protocol.messages import (
    CopiesHeld,
    Granted,
    Join,
    KeepCopy,
    Message,
    SnapshotTaken,
    Surplus,
    TakeSnapshot,
)
from swarmflow.core.protocol.types import Holding, Member, Plan, Snapshot
from tests.core.samples import member, messages, of_type, process

ME, LEADER = process("me"), process("t0")
AT_8 = Snapshot(8, ("d", "e"))
ON_DISK = (Holding(AT_8, (1,)),)


class Bench:
    """A peer of a run of two stages. keeps: it has room for copies."""

    def __init__(self, keeps: bool = True) -> None:
        join = Join("peer", "1.0", "run", Member(ME, -1), keeps=keeps, copies=ON_DISK)
        self.peer = PeerMachine(ME, LeaderLease(LEADER), Plan(2, 1), PeerSettings(join))

    def event(self, event: Event, now: float = 0.0) -> list[Action]:
        return self.peer.handle(event, now)

    def hear(self, message: Message, sender: str = "t0") -> list[Action]:
        return self.event(Received(process(sender), message))


def test_it_copies_what_it_is_asked_for_and_tells_what_it_has() -> None:
    bench, holder = Bench(), member("t0", -1)
    actions = bench.hear(KeepCopy(AT_8, (0, 1), ((holder,), (holder,))))
    assert of_type(actions, KeepCopies) == [KeepCopies(AT_8, (0, 1), ((holder,), (holder,)))]
    assert of_type(actions, Connect) == [Connect((holder,))]
    both = (Holding(AT_8, (0, 1)),)
    assert messages(bench.event(CopiesChanged(both)), CopiesHeld) == [(LEADER, CopiesHeld(both))]
    assert messages(bench.event(CopiesChanged(both, "no space")), CopiesHeld) == [
        (LEADER, CopiesHeld(both, "no space"))
    ]


def test_it_joins_with_what_it_has_now() -> None:
    bench = Bench()
    assert [join.copies for _, join in messages(bench.event(Tick()), Join)] == [ON_DISK]
    newer = (Holding(AT_8, (0, 1)),)
    bench.event(CopiesChanged(newer))
    assert [join.copies for _, join in messages(bench.event(Tick(), 5.0), Join)] == [newer]


def test_it_deletes_what_is_needed_no_more() -> None:
    assert of_type(Bench().hear(Surplus(4, 8, 8)), DropCopies) == [DropCopies(4, 8, 8)]


@pytest.mark.parametrize(
    "snapshot", [Snapshot(8, ("d",)), Snapshot(8, ()), Snapshot(0, ("d", "e")), Snapshot(-3, ("d", "e"))]
)
def test_what_is_no_version_of_the_run_is_not_copied(snapshot: Snapshot) -> None:
    assert not of_type(Bench().hear(KeepCopy(snapshot, (0,), ((member("t0", -1),),))), KeepCopies)


def test_nobody_but_the_leader_uses_its_disk() -> None:
    bench = Bench()
    assert of_type(bench.hear(KeepCopy(AT_8, (0,), ((member("x"),),)), "x"), Count) == [
        Count("messages_ignored", "KeepCopy")
    ]
    assert not of_type(bench.hear(Surplus(9, 9, 9), "x"), DropCopies)


def test_who_keeps_no_copies_keeps_none() -> None:
    bench = Bench(keeps=False)
    assert not of_type(bench.hear(KeepCopy(AT_8, (0,), ((member("t0", -1),),))), KeepCopies)
    assert of_type(bench.hear(Surplus(9, 9, 9)), DropCopies), "what it has written of its own stage"


def test_it_writes_its_own_stage_at_the_version_that_it_serves() -> None:
    bench = Bench()
    assert messages(bench.hear(TakeSnapshot(8)), SnapshotTaken) == [], "it serves nothing yet"
    bench.hear(Granted(1, 1, 8, (), 0))
    [(_, refused)] = messages(bench.hear(TakeSnapshot(8)), SnapshotTaken)
    assert refused == SnapshotTaken(1, 8, failed="it is loading")
    bench.event(StateLoaded(1, 8, "d", 4, (("stage-1", 10),)))
    assert of_type(bench.hear(TakeSnapshot(8)), WriteStage) == [WriteStage(1, 8)]
    assert messages(bench.event(StageWritten(1, 8, "e")), SnapshotTaken) == [(LEADER, SnapshotTaken(1, 8, "e"))]
    [(_, refused)] = messages(bench.hear(TakeSnapshot(9)), SnapshotTaken)
    assert refused.failed == "stage 1 is at version 8"
    assert bench.hear(TakeSnapshot(8), "x") == [Count("messages_ignored", "TakeSnapshot")]
