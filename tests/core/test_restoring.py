"""A leader goes on from the newest version that anybody has on disk, and never begins again while one is known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from swarmflow.core.durability.memories import NOTHING, Former
from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.leading.leader_state import GENERATIONS
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.protocol.actions import Action, Log, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, Lost, Received, Tick
from swarmflow.core.protocol.messages import (
    CopiesHeld,
    Done,
    Granted,
    Heartbeat,
    Held,
    Join,
    KeepCopy,
    Left,
    Message,
    OpenStep,
    Prepare,
    Prepared,
    Ready,
    RosterDelta,
    StepResult,
    Welcome,
)
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Holding, Microbatch, Plan, ProcessId, Snapshot
from tests.core.samples import calls, commits, member, messages, of_type, process, written
from tests.core.test_memories import commit, held, name_of

ME = member("t0", -1)
A, B, C, D, OTHER = process("a"), process("b"), process("c"), process("d"), process("t1")
TIMEOUTS = Timeouts()
SETTINGS = LeaderSettings(20, lambda step: 0.1, 0.0, "1.0", "run", from_seed=True, new_lineage=lambda: "new")
AT_4, AT_8 = Snapshot(4, ("a", "b")), Snapshot(8, ("d", "e"))


@dataclass
class Bench:
    """A leader of two stages that starts with what is left on its disk."""

    on_disk: int = 0
    known: int = 0
    former: Former = NOTHING
    now: float = 100.0
    leader: Leader = field(init=False)

    def __post_init__(self) -> None:
        roots = ("a", "b") if self.on_disk else ()
        self.leader = Leader(ME, Plan(2, 1), SETTINGS, 1, self.on_disk, self.on_disk, roots, self.known, self.former)
        self.leader.start(self.now)

    def hear(self, sender: ProcessId, message: Message) -> list[Action]:
        return self.leader.handle(Received(sender, message), self.now)

    def join(self, who: ProcessId, *stages: int, of: Snapshot = AT_8, role: str = "peer") -> list[Action]:
        copies = (Holding(of, stages),) if stages else ()
        me = replace(member(who.name, -1), process=who)
        return self.hear(who, Join(role, "1.0", "run", me, keeps=True, copies=copies))

    def join_again(self, who: ProcessId, held: Held) -> list[Action]:
        """A peer that has outlived its leader."""
        return self.hear(who, Join("peer", "1.0", "run", replace(member(who.name, -1), process=who), held=held))

    def wait(self, seconds: int, *living: ProcessId) -> list[Action]:
        actions: list[Action] = []
        for _ in range(seconds):
            self.now += 1.0
            for other in living:
                actions += self.hear(other, Heartbeat())
            actions += self.leader.handle(Tick(), self.now)
        return actions

    def written(self, version: int, roots: tuple[str, ...] = AT_8.roots) -> list[Action]:
        return written(self.leader, CheckpointWritten(version, True, roots=roots), self.now)

    def serve(self, *peers: ProcessId) -> list[Action]:
        """These are ready at the version of the leader; what followed from the last one's word."""
        actions: list[Action] = []
        for peer in peers:
            known = self.leader.membership.known[peer]
            certified, stage = self.leader.certified, known.member.stage
            here = certified is not None and certified.version == self.leader.version
            root = certified.roots[stage] if certified is not None and here else "root"
            actions = self.hear(peer, Ready(stage, self.leader.version, root, 4, known.grants))
        return actions


def test_a_new_run_grants_its_stages_at_once() -> None:
    assert [granted.version for _, granted in messages(Bench().join(A), Granted)] == [0]


def test_a_lost_disk_is_made_good_from_the_disks_of_peers() -> None:
    bench = Bench(known=8)
    assert bench.leader.waiting_for.startswith("version 8, which nobody here holds")
    assert not messages(bench.join(C), Granted), "what it is to load is not known yet"
    bench.join(A, 1)
    assert bench.leader.waiting_for.startswith("version 8, of which nobody here holds stage 0")
    assert not of_type(bench.wait(60, A, C), WriteCheckpoint)
    [write] = of_type(bench.join(B, 0, 1), WriteCheckpoint)
    assert (write.version, write.roots) == (8, AT_8.roots)
    assert [[m.process for m in stage] for stage in write.roster.stages] == [[B], [A, B]]
    granted = messages(bench.written(8), Granted)
    assert {(to, message.version, message.donors) for to, message in granted} == {
        (peer, 8, (ME,)) for peer in (A, B, C)
    }
    opened = messages(bench.serve(A, B, C), OpenStep) or messages(bench.wait(1, A, B, C), OpenStep)
    assert bench.leader.phase == "running", opened
    assert bench.leader.version == 8


def test_another_trainer_has_it_all() -> None:
    bench = Bench(known=8)
    actions = bench.join(OTHER, 0, 1, role="trainer")
    assert messages(actions, Welcome)
    [write] = of_type(actions, WriteCheckpoint)
    assert [[m.process for m in stage] for stage in write.roster.stages] == [[OTHER], [OTHER]]


def test_a_holder_that_dies_while_it_gives_is_waited_for() -> None:
    bench = Bench(known=8)
    bench.join(A, 0)
    bench.join(B, 1)
    bench.leader.handle(Lost(B, "killed"), bench.now)
    failed = written(bench.leader, CheckpointWritten(8, False, "lost b"), bench.now)
    assert not of_type(failed, WriteCheckpoint)
    assert "stage 1" in bench.leader.waiting_for
    assert not of_type(bench.join(process("b", 2), 1), WriteCheckpoint), "not at once after a failure"
    again = bench.wait(10, A, process("b", 2))
    assert [write.version for write in of_type(again, WriteCheckpoint)] == [8]


def test_an_earlier_version_on_disk_is_gone_on_from_when_the_later_one_does_not_turn_up() -> None:
    bench = Bench(on_disk=4, known=8)
    assert not messages(bench.join(A), Granted)
    waited = bench.wait(int(TIMEOUTS.copies_s), A)
    assert [granted.version for _, granted in messages(waited, Granted)] == [4]
    assert [granted.version for _, granted in messages(bench.join(B, 1), Granted)] == [4], "that was waited for"


@pytest.mark.parametrize("running", [False, True])
def test_a_run_that_began_anew_goes_over_to_what_a_newcomer_has_kept(running: bool) -> None:
    bench = Bench()
    bench.join(A)
    if running:
        bench.join(B)
        bench.serve(A, B)
        assert bench.leader.phase == "running"
    [write] = of_type(bench.join(C, 0, 1), WriteCheckpoint)
    assert write.version == 8
    granted = messages(bench.written(8), Granted)
    assert {to for to, _ in granted} == ({A, B, C} if running else {A, C})
    assert {message.version for _, message in granted} == {8}
    assert bench.leader.generation == 1


def test_a_run_at_work_is_not_stopped_for_a_part_of_a_later_version() -> None:
    bench = Bench(on_disk=4)
    bench.join(A)
    bench.join(B)
    bench.serve(A, B)
    assert messages(bench.join(C, 0), Granted)
    assert bench.leader.phase == "running"


def test_who_asks_again_amid_a_search_does_not_have_all_disks_looked_through() -> None:
    """Every process of a swarm that starts again repeats its Join as long as the search lasts."""
    bench, efforts = Bench(known=8), list[tuple[int, int]]()
    for number in range(100):
        bench.join(process(f"p{number}"), 1)
        if number + 1 in (10, 100):
            bench.join(A, 1)
            efforts.append((calls(lambda: bench.join(A, 1)), calls(bench.leader.safe.copies.newest_whole)))
            bench.leader.handle(Lost(A, "killed"), bench.now)
    assert efforts[0] == efforts[1], "with ten processes, and with a hundred"


def test_a_lost_stage_goes_back_to_what_the_peers_kept() -> None:
    """The leader's own disk may be behind: it has taken over, or could not write."""
    bench = Bench(on_disk=4)
    bench.join(A)
    bench.join(B)
    bench.serve(A, B)
    bench.leader.last, bench.leader.version = None, 9
    bench.hear(A, CopiesHeld((Holding(AT_8, (0, 1)),)))
    actions = bench.leader.handle(Lost(B, "killed"), bench.now)
    assert [write.version for write in of_type(actions + bench.wait(1, A), WriteCheckpoint)] == [8]
    assert any("has lost everybody: back from version 9" in log.text for log in of_type(actions, Log))
    assert {message.version for _, message in messages(bench.written(8), Granted)} == {8}


def test_what_is_written_is_kept_by_peers_too_also_by_those_who_come_later() -> None:
    bench = Bench(on_disk=4)
    bench.join(A)
    bench.join(B)
    bench.serve(A, B)
    bench.leader.safe.write(8, bench.leader.membership.roster(4), last=False, roots=AT_8.roots)
    kept = messages(bench.written(8), KeepCopy)
    assert {(to, keep.snapshot, keep.stages) for to, keep in kept} == {(A, AT_8, (1,)), (B, AT_8, (0,))}
    bench.hear(A, CopiesHeld((Holding(AT_8, (1,)),)))
    safe = bench.hear(B, CopiesHeld((Holding(AT_8, (0,)),)))
    assert "is on the disks of others too" in "".join(log.text for log in of_type(safe, Log))
    again = {(to, keep.stages) for to, keep in messages(safe, KeepCopy)}
    assert again == {(A, (0,)), (B, (1,))}, "there are no others for a second copy"


def test_what_a_peer_that_never_answers_was_to_copy_is_copied_by_others() -> None:
    bench = Bench(on_disk=4)
    bench.leader.safe.copies.patience_s = 5.0
    bench.join(A)
    bench.join(B)
    bench.serve(A, B)
    bench.leader.safe.write(8, bench.leader.membership.roster(4), last=False, roots=AT_8.roots)
    bench.written(8)
    bench.hear(A, CopiesHeld((Holding(AT_8, (1,)),)))
    waited = bench.wait(8, A, B)
    assert [(to, keep.stages) for to, keep in messages(waited, KeepCopy)] == [(A, (0,))]
    assert any(f"{B} has not answered whether it has copied version 8" in log.text for log in of_type(waited, Log))


def test_a_report_without_news_does_not_have_it_weighed_among_all_peers_who_copies_what() -> None:
    """After each version every peer reports what is left of the earlier ones, and most of a large swarm had nothing."""
    efforts = []
    for size in (10, 100):
        bench = Bench(on_disk=4)
        peers = [process(f"p{number}") for number in range(size)]
        for peer in peers:
            bench.join(peer)
        bench.serve(*peers)
        efforts.append(calls(partial(bench.hear, peers[0], CopiesHeld(()))))
        assert messages(bench.hear(peers[0], CopiesHeld((Holding(AT_4, (0,)),))), KeepCopy), "that is news"
    assert efforts[0] == efforts[1]


# --- from the memory of peers -----------------------------------------------------------------------------------------


def test_a_later_version_in_memory_is_gone_on_from_and_only_newcomers_load_it() -> None:
    bench = Bench(on_disk=4, former=Former(9, frozenset("abc")))
    assert "version 9 in memory" in bench.leader.waiting_for
    assert not messages(bench.join(OTHER, role="trainer"), Granted)
    assert not messages(bench.join_again(A, held(0, 9)), Granted)
    assert not messages(bench.join(C), Granted), "what it is to load is not known yet"
    actions = bench.join_again(B, held(1, 8, sealed=True))
    granted = dict(messages(actions, Granted))
    assert {p: (g.stage, g.version, g.name) for p, g in granted.items() if p != C} == {
        A: (0, 9, name_of(9)),
        B: (1, 9, name_of(9)),
    }
    assert granted[B].commit == commit(9)
    assert (granted[C].stage, [donor.process for donor in granted[C].donors]) == (1, [B])
    told = messages(actions, StepResult)
    assert {to for to, _ in told} == {ME.process, OTHER}
    assert {result.step for _, result in told} == {8}, "whoever recorded it last may be dead"
    opened = messages(bench.serve(A, B), OpenStep)
    assert {message.epoch.step for _, message in opened} == {9}


def test_a_leader_that_has_begun_goes_over_to_what_peers_still_hold() -> None:
    bench = Bench(on_disk=4)
    bench.join(C)
    assert not messages(bench.join_again(A, held(0, 9)), Granted)
    granted = messages(bench.join_again(B, held(1, 9)), Granted)
    assert not granted, "somebody may hold a later one"
    granted = messages(bench.wait(6, A, B, C), Granted)
    assert {message.version for _, message in granted} == {9}


def test_a_step_that_is_decided_is_not_given_up_for_what_peers_still_hold() -> None:
    bench = Bench(on_disk=4)
    for peer in (C, D):
        bench.join(peer)
    bench.serve(C, D)
    epoch = Epoch(0, 4)
    actions = [
        each
        for peer, stage in ((C, 0), (D, 1))
        for each in bench.hear(peer, Done(Microbatch(epoch, 0), stage, FIRST_ATTEMPT, 2.0, 1))
    ]
    for asked, prepare in messages(actions, Prepare):
        results = tuple((group.name, 1.0, "x") for group in prepare.groups)
        actions = bench.hear(asked, Prepared(epoch, prepare.ballot, results))
    assert {to for to, _ in commits(actions)} == {C, D}
    assert {message.epoch for _, message in messages(actions, RosterDelta)} == {Epoch(0, 5)}
    bench.join_again(A, held(0, 9))
    bench.join_again(B, held(1, 9))
    assert bench.leader.epoch == Epoch(0, 5)


def test_the_memory_of_one_stage_is_not_waited_for_twice() -> None:
    bench = Bench(on_disk=4)
    bench.join(C)
    bench.join_again(A, held(0, 9))
    waited = bench.wait(int(TIMEOUTS.memory_s) + 1, A, C)
    assert {message.version for _, message in messages(waited, Granted)} == {4}
    assert {message.version for _, message in messages(bench.join_again(D, held(0, 9)), Granted)} == {4}


def test_who_starts_again_and_again_with_a_later_version_in_its_folder_is_waited_for_once() -> None:
    """Else each of its lives voids what all others load, and a run whose loading takes longer never goes on."""
    bench = Bench(on_disk=4)
    bench.join(C)
    told: list[Action] = []
    for life in range(1, 2 * int(TIMEOUTS.memory_s)):
        told += bench.join_again(ProcessId("a", life), held(0, 9))
        told += bench.wait(1, C)
    assert [message.version for who, message in messages(told, Granted) if who == C] == [4]


@pytest.mark.parametrize("beyond", [1, 1 << 39])
def test_nobody_holds_a_version_after_the_last_step(beyond: int) -> None:
    """Neither is it waited for, nor is the run finished for it."""
    version = SETTINGS.steps + beyond
    bench = Bench(on_disk=4)
    bench.join(C)
    assert {message.version for _, message in messages(bench.join_again(A, held(0, version)), Granted)} == {4}
    assert {message.version for _, message in messages(bench.join_again(B, held(1, version)), Granted)} == {4}
    of = Snapshot(version, AT_8.roots)
    assert {message.version for _, message in messages(bench.join(D, 0, 1, of=of), Granted)} == {4}
    bench.serve(A, B, C, D)
    assert bench.leader.phase == "running"
    bench.hear(A, Left(1, held(bench.leader.membership.known[A].member.stage, version)))
    assert not bench.leader.recovery.absent
    final = held(0, SETTINGS.steps)
    assert not messages(bench.join_again(process("e"), final), Granted), "the last version is one"
    assert bench.leader.recovery.memories.newest() == SETTINGS.steps


def test_who_comes_back_to_a_leader_with_the_state_at_hand_loads_nothing() -> None:
    bench = Bench(on_disk=4, former=Former(9, frozenset("ab")))
    bench.join_again(A, held(0, 9))
    bench.join_again(B, held(1, 9))
    bench.serve(A, B)
    [(_, granted)] = messages(bench.join_again(process("a", 2), held(0, 9)), Granted)
    assert (granted.stage, granted.version, granted.name) == (0, 9, name_of(9))


def test_the_generations_of_a_former_life_are_all_earlier_ones() -> None:
    """What was signed then is shown by anybody; of two epochs the later one counts."""
    bench = Bench(on_disk=4, former=Former(9, frozenset("ab"), 5))
    assert bench.leader.epoch == Epoch(5 + GENERATIONS, 4)
    assert Bench(on_disk=4).leader.epoch == Epoch(0, 4)
