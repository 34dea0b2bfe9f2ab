"""What a leader decides about a value that is not finite: void, again elsewhere, put out and named, or stop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from swarmflow.core.commit.step import Step
from swarmflow.core.machines.leader import Leader
from swarmflow.core.membership.findings import SAME_PEER_MAX, TRIES_MAX, Finding, Findings, plain
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.protocol.actions import Action, Count, Exit, Log, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, Lost, Received, Tick
from swarmflow.core.protocol.messages import (
    Committed,
    Done,
    Evicted,
    Finished,
    Granted,
    Heartbeat,
    Join,
    Message,
    NotFinite,
    OpenStep,
    Prepare,
    Prepared,
    Ready,
    RosterDelta,
    StateRoot,
)
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Microbatch, Plan, ProcessId, Roster
from swarmflow.core.routing.link_rates import LinkTable
from tests.core.samples import EPOCH, LINEAGE, commits, decided, member, messages, microbatch, of_type, process, written

A, B, C = process("a"), process("b"), process("c")
ME = member("t", -1)
SETTINGS = LeaderSettings(9, lambda step: 0.1, 1.0, "1.0", "run", True, lambda: "new")
TIMEOUTS = Timeouts(join_hold_s=0.0)


class Bench:
    """A leader of a run of one stage and two microbatches a step, with these peers in its first step."""

    def __init__(self, *peers: ProcessId) -> None:
        self.now = 0.0
        self.leader = Leader(ME, Plan(1, 2, timeouts=TIMEOUTS), replace(SETTINGS, peers_first=len(peers)), 1, 0, 0)
        self.leader.start(self.now)
        for peer in peers:
            self.come(peer)
        self.actions: list[Action] = []

    def come(self, peer: ProcessId) -> list[Action]:
        joined = self.hear(peer, Join("peer", "1.0", "run", replace(member(peer.name), process=peer)))
        for _, grant in messages(joined, Granted):
            joined += self.hear(peer, Ready(0, grant.version, "root", 4, grant.grant))
        return joined

    @property
    def step(self) -> Step:
        assert self.leader.step is not None
        return self.leader.step

    @property
    def serving(self) -> list[ProcessId]:
        return [peer.process for peer in self.step.roster.peers]

    def hear(self, sender: ProcessId, message: Message) -> list[Action]:
        return self.leader.handle(Received(sender, message), self.now)

    def broken(self, sender: ProcessId, index: int = 0, value: str = "gradient", layer: str = "") -> list[Action]:
        return self.hear(sender, NotFinite(self.step.epoch, index, value, layer))

    def broken_update(self, sender: ProcessId, layer: str = "") -> list[Action]:
        return self.hear(sender, NotFinite(decided(self.step), -1, "update", layer))

    def work(self, *peers: ProcessId, norm: float = 1.0) -> list[Action]:
        """A step from its opening until every member has reduced: the microbatches go round these peers."""
        epoch = self.step.epoch
        for index in range(2):
            self.hear(peers[index % len(peers)], Done(Microbatch(epoch, index), 0, FIRST_ATTEMPT, 20.0, 10))
        return self.reduce(norm)

    def reduce(self, norm: float = 1.0) -> list[Action]:
        actions: list[Action] = []
        for peer in self.serving:
            actions = self.hear(peer, Prepared(self.step.epoch, self.step.ballot.number, (("stage-0", norm, "x"),)))
        return actions

    def commit(self) -> list[Action]:
        epoch, actions = decided(self.step), list[Action]()
        for peer in self.serving:
            actions += self.hear(peer, Committed(epoch, epoch.step + 1))
        for entry in self.leader.membership.peers():
            actions += self.hear(entry.process, StateRoot(0, epoch.step + 1, "root"))
        return actions


# --- the try is void --------------------------------------------------------------------------------------------------


def test_gradients_beyond_the_numbers_of_fp32_are_never_committed() -> None:
    bench = Bench(A, B)
    actions = bench.work(A, B, norm=1e80)
    assert not commits(actions)
    assert bench.step.epoch == Epoch(1, 0), "it starts over"
    assert Count("not_finite") in actions


def test_gradients_whose_squares_no_optimizer_can_hold_are_never_committed() -> None:
    bench = Bench(A, B)
    bench.step.clip = 0.0
    assert not commits(bench.work(A, B, norm=1e44))
    bench.step.clip = 1.0
    assert commits(bench.work(A, B, norm=1e44)), "clipped they are small"


def test_the_step_begins_anew_without_the_peer_and_looks_closely() -> None:
    bench = Bench(A, B, C)
    actions = bench.broken(B, layer="layers.3")
    opened = messages(actions, RosterDelta)
    assert {message.epoch for _, message in opened} == {Epoch(1, 0)}
    assert {message.careful for _, message in opened} == {True}
    assert bench.serving == [A, C]
    assert not messages(actions, Evicted), "it has not been computed elsewhere yet"
    [text] = [log.text for log in of_type(actions, Log) if log.level == "warning"]
    assert text == f"step 0 starts over: the gradient of microbatch 0/0 is not finite in layers.3 of stage 0, on {B}"


def test_what_is_committed_of_another_epoch_or_no_such_value_voids_nothing() -> None:
    bench = Bench(A, B)
    bench.hear(A, NotFinite(Epoch(5, 0), 0, "gradient"))
    bench.broken(A, index=2)
    bench.broken(A, index=-2)
    bench.broken(A, value="mood")
    bench.hear(process("stranger"), NotFinite(EPOCH, 0, "gradient"))
    bench.hear(ME.process, NotFinite(EPOCH, 0, "gradient"))
    assert bench.step.epoch == EPOCH
    assert commits(bench.work(A, B))
    bench.hear(A, NotFinite(EPOCH, 0, "gradient"))
    assert (bench.step.epoch, bench.step.phase) == (EPOCH.following, "working")


def test_who_made_a_sum_that_is_not_finite_is_left_out_when_all_have_answered() -> None:
    bench = Bench(A, B, C)
    for index in range(2):
        bench.hear(A, Done(microbatch(index), 0, FIRST_ATTEMPT, 20.0, 10))
    for peer in (A, C, B):
        assert bench.step.epoch == EPOCH, "B may have been given it by another, who says so"
        bench.hear(peer, NotFinite(EPOCH, -1, "sum", owner=B))
    assert bench.serving == [A, C]


def test_who_gave_what_made_a_sum_not_finite_is_left_out_rather_than_who_summed_it() -> None:
    bench = Bench(A, B, C)
    for index in range(2):
        bench.hear(A, Done(microbatch(index), 0, FIRST_ATTEMPT, 20.0, 10))
    for peer in (A, B):
        bench.hear(peer, NotFinite(EPOCH, -1, "sum", owner=B))
    bench.broken(C, index=-1)
    assert bench.serving == [A, B]


@pytest.mark.parametrize("sound", [(B,), (B, C)])
def test_one_accuser_puts_out_nobody_but_itself(sound: tuple[ProcessId, ...]) -> None:
    bench = Bench(A, *sound)
    for index in range(2):
        bench.hear(A, Done(microbatch(index), 0, FIRST_ATTEMPT, 20.0, 10))
    for peer in sound:
        bench.hear(peer, Prepared(EPOCH, 1, (("stage-0", 1.0, "x"),)))
    bench.hear(A, NotFinite(EPOCH, -1, "sum", owner=B))
    assert bench.serving == list(sound), "they hold the same bits, and have a norm"


def test_a_stages_only_peer_accuses_nobody_of_another_stage() -> None:
    bench = Bench(A)
    for index in range(2):
        bench.hear(A, Done(microbatch(index), 0, FIRST_ATTEMPT, 20.0, 10))
    bench.hear(A, NotFinite(EPOCH, -1, "sum", owner=B))
    assert [finding.holder for finding in bench.leader.faults.findings.found] == [A]


def test_whose_sum_is_not_finite_counts_no_more_in_another_ballot() -> None:
    bench = Bench(A, B, C)
    for index in range(2):
        bench.hear(A, Done(microbatch(index), 0, FIRST_ATTEMPT, 20.0, 10))
    bench.hear(A, NotFinite(EPOCH, -1, "sum", owner=B))
    bench.leader.handle(Lost(C, "reset"), bench.now)
    actions = bench.reduce()
    assert {to for to, _ in commits(actions)} == {A, B}


# --- put out, or stop -------------------------------------------------------------------------------------------------


def test_who_gave_it_is_put_out_and_named_when_it_is_finite_elsewhere() -> None:
    bench = Bench(A, B)
    bench.broken(A, index=1, layer="layers.0")
    bench.work(B)
    actions = bench.commit()
    [(to, evicted)] = messages(actions, Evicted)
    assert to == A
    assert "the gradient of microbatch 0/1 is not finite in layers.0 of stage 0" in evicted.reason
    assert "60 s" in evicted.reason
    assert Count("put_out") in actions
    assert bench.serving == [B]
    assert not bench.step.open_step.careful, "the next step is like any other"


def test_who_was_put_out_is_granted_nothing_for_a_while_each_time_twice_as_long() -> None:
    bench = Bench(A, B)
    for turn, seconds in enumerate((TIMEOUTS.barred_s, 2 * TIMEOUTS.barred_s), start=1):
        late = process("a", turn)
        bench.broken(late)
        bench.work(B)
        bench.commit()
        again = process("a", turn + 1)
        assert not messages(bench.come(again), Granted)
        bench.now += seconds - 1.0
        for peer in (B, again, ME.process):
            bench.hear(peer, Heartbeat())
        assert not messages(bench.leader.handle(Tick(), bench.now), Granted)
        bench.now += 2.0
        [(to, grant)] = messages(bench.leader.handle(Tick(), bench.now), Granted)
        assert to == again
        bench.hear(again, Ready(0, grant.version, "root", 4, grant.grant))
        bench.work(B)
        bench.commit()
        assert bench.serving == sorted((again, B))


def test_a_stage_that_nobody_else_serves_takes_who_was_put_out_at_once() -> None:
    bench = Bench(A, B)
    bench.broken(A)
    bench.work(B)
    bench.commit()
    again = process("a", 2)
    assert not messages(bench.come(again), Granted)
    bench.leader.safe.durable = 1
    granted = messages(bench.leader.handle(Lost(B, "reset"), bench.now), Granted)
    assert [to for to, _ in granted] == [again]


def test_a_stages_only_peer_does_it_once_more_and_is_named_when_it_is_finite_then() -> None:
    bench = Bench(A)
    bench.broken(A)
    assert bench.serving == [A]
    bench.work(A)
    actions = bench.commit()
    assert not messages(actions, Evicted)
    [text] = [log.text for log in of_type(actions, Log) if log.level == "warning"]
    assert text.startswith(f"the gradient of microbatch 0/0 is not finite on stage 0, on {A}; it was finite the second")


@pytest.mark.parametrize("peers", [(A,), (A, B), (A, B, C)])
def test_what_is_finite_nowhere_stops_the_run_at_its_version_and_is_named(peers: tuple[ProcessId, ...]) -> None:
    bench = Bench(*peers)
    bench.work(*peers)
    bench.commit()
    first = bench.serving[0]
    bench.broken(first, 1)
    second = bench.serving[0]
    actions = bench.broken(second, 1, layer="model.layers.7")
    [write] = of_type(actions, WriteCheckpoint)
    assert write.version == 1, "the last good one"
    ended = written(bench.leader, CheckpointWritten(1, True, roots=("x",)), bench.now)
    told = dict(messages(ended, Finished))
    assert told.keys() == set(peers)
    [left] = of_type(ended, Exit)
    where = f"neither on {first} nor on {second}" if first != second else f"twice on {first}"
    reason = f"the gradient of microbatch 1/1 is not finite in model.layers.7 of stage 0, {where}"
    assert {message.reason for message in told.values()} == {reason}
    assert (left.reason, left.ok) == (f"{reason}; version 1 is on disk", False)


def voters(bench: Bench) -> None:
    """Trainers come: of the five voters one may lie."""
    for number in range(3):
        trainer = process(f"t{number}")
        bench.hear(trainer, Join("trainer", "1.0", "run", replace(member(trainer.name, -1), process=trainer)))


def test_what_one_peer_alone_finds_stops_no_run_whose_members_may_lie() -> None:
    bench = Bench(A)
    voters(bench)
    bench.broken(A)
    bench.broken(A)
    assert not bench.leader.fate
    assert f"{A.name} is kept out: it reports what no" in bench.leader.waits_for
    bench.come(B)
    bench.broken(B)
    assert bench.leader.fate.endswith(f"neither on {A} nor on {B}"), "two of five have found it"


def test_a_norm_that_one_peer_alone_reports_stops_no_run_whose_members_may_lie() -> None:
    bench = Bench(A)
    voters(bench)
    for _ in range(2):
        bench.work(A, norm=1e80)
    assert not bench.leader.fate
    assert f"{A.name} is kept out: it reports what no" in bench.leader.waits_for


def test_an_update_that_one_peer_alone_finds_not_finite_stops_no_run_whose_members_may_lie() -> None:
    bench = Bench(A)
    voters(bench)
    for turn in range(1, 3):
        late = process("a", turn)
        bench.work(late)
        for trainer in bench.step.roster.trainers:
            bench.hear(trainer.process, Prepared(bench.step.epoch, bench.step.ballot.number, ()))
        bench.broken_update(late)
        assert not bench.leader.fate
        bench.come(process("a", turn + 1))
    assert f"{A.name} is kept out: it reports what no" in bench.leader.waits_for


def test_a_run_that_stops_says_which_version_is_on_disk_when_its_last_one_cannot_be_written() -> None:
    bench = Bench(A)
    bench.work(A)
    bench.commit()
    bench.broken(A)
    bench.broken(A)
    [left] = of_type(written(bench.leader, CheckpointWritten(1, False, "the disk is full"), bench.now), Exit)
    assert left.reason.endswith("no version is on disk")


def test_the_update_of_a_stages_peer_is_its_own_loss_and_that_of_all_of_them_stops_the_run() -> None:
    bench = Bench(A, B)
    bench.work(A, B)
    actions = bench.broken_update(A, layer="wte.weight")
    assert [to for to, _ in messages(actions, Evicted)] == [A]
    assert bench.leader.phase == "running"
    [left] = of_type(bench.broken_update(B), Exit)
    assert f"neither on {A} nor on {B}" in left.reason


def test_a_leader_that_takes_over_commits_no_ballot_without_a_norm() -> None:
    said = OpenStep(1, EPOCH, Roster(((member("a"), member("b")),), (ME,)), LINEAGE)
    step = Step(Plan(1, 2), 1, said, 0.1, 0.0, 0.0)
    for index in range(2):
        step.done(A, Done(microbatch(index), 0, FIRST_ATTEMPT, 20.0, 10))
    [(_, prepare), _] = messages(step.prepare((), LinkTable()), Prepare)
    step.resume_prepared(prepare.tally, dict.fromkeys((A, B), (("stage-0", math.inf, "x"),)))
    assert step.phase == "failed"
    assert step.failure is not None
    assert step.failure.finding == Finding(0, -1, -1, None, "gradient")


# --- the record -------------------------------------------------------------------------------------------------------


def test_a_hop_that_its_only_peer_failed_moves_to_one_who_came_meanwhile() -> None:
    findings = Findings()
    assert not findings.add(Finding(3, 0, 1, A, "gradient"), others=False)
    assert not findings.add(Finding(3, 0, 1, A, "gradient"), others=True)
    assert findings.add(Finding(3, 0, 1, B, "gradient"), others=False)


def test_unlike_hops_are_no_proof_but_there_is_an_end_to_it() -> None:
    alone = Findings()
    reasons = [alone.add(Finding(3, index, 1, A, "loss"), others=False) for index in range(SAME_PEER_MAX)]
    assert [bool(reason) for reason in reasons] == [False] * (SAME_PEER_MAX - 1) + [True]
    many = Findings()
    reasons = [many.add(Finding(3, n, 1, process(f"p{n}"), "loss"), others=True) for n in range(TRIES_MAX)]
    assert [bool(reason) for reason in reasons] == [False] * (TRIES_MAX - 1) + [True]


def test_what_nobody_can_be_blamed_for_is_tried_once_more() -> None:
    findings = Findings()
    assert not findings.add(Finding(3, -1, 1, None, "sum"), others=True)
    assert findings.add(Finding(3, -1, 1, None, "sum"), others=True).endswith("stage 1, twice")


def test_an_update_that_failed_is_remembered_until_a_later_step_is_committed() -> None:
    findings = Findings()
    findings.add(Finding(3, -1, 1, A, "update"), others=True)
    findings.add(Finding(3, 0, 1, A, "gradient"), others=True)
    assert [finding.value for finding in findings.settle(3)] == ["gradient"]
    assert findings.of(3), "its stage may be lost, and the run come back to it"
    findings.settle(4)
    assert not findings.found


@pytest.mark.parametrize(("layer", "kept"), [("h.3", "h.3"), ("x" * 121, ""), ("a\nb", ""), ("é", "")])
def test_a_layer_is_named_in_plain_characters(layer: str, kept: str) -> None:
    assert plain(layer) == kept
