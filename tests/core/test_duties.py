"""Duties: when somebody stands still, by the measure of how fast it used to go; and for how long it is kept out."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from swarmflow.core.machines.leading import progress
from swarmflow.core.membership.duties import Duty, Pauses
from swarmflow.core.protocol.actions import Action, Log, Rejoin, WriteCheckpoint
from swarmflow.core.protocol.events import Lost, Tick
from swarmflow.core.protocol.messages import (
    Committed,
    Done,
    Evicted,
    Granted,
    Heartbeat,
    HopHandover,
    Join,
    LinkRateReport,
    OpenStep,
    Postponed,
    Prepare,
    Prepared,
    Ready,
    ReportRoot,
    StateRoot,
)
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, ProcessId
from tests.core.samples import member, messages, microbatch, of_type, process
from tests.core.test_leader import ME, OTHER, SETTINGS, A, B, Bench, C

D = process("d")


def seen(*signs: tuple[str, int, float]) -> Duty:
    duty = Duty()
    for task, done, now in signs:
        duty.see(task, (done,), now)
    return duty


def test_whoever_makes_progress_has_ten_times_what_is_usual_from_then_on() -> None:
    assert seen(("work", 0, 0.0)).due_s(60.0) == 60.0
    assert seen(("work", 0, 0.0)).due_s(60.0, first=8.0) == 480.0
    assert seen(("work", 0, 0.0), ("work", 1, 5.0)).due_s(60.0) == 65.0
    assert seen(("work", 0, 0.0), ("work", 1, 50.0)).due_s(60.0) == 550.0
    assert seen(("work", 0, 0.0), ("load", 1, 50.0)).due_s(60.0) == 110.0, "another kind of work has its own measure"


def test_each_miss_doubles_the_time_and_is_no_measure_of_what_is_usual() -> None:
    duty = seen(("work", 0, 0.0))
    duty.miss(60.0)
    assert duty.due_s(60.0) == 180.0
    duty.see("work", (1,), 170.0)
    assert duty.due_s(60.0) == 230.0


def test_time_in_which_nothing_is_owed_does_not_count_and_does_not_start_it_anew() -> None:
    duty = seen(("work", 7, 0.0), ("", 7, 40.0), ("work", 7, 1000.0))
    assert duty.due_s(60.0) == 1020.0
    assert seen(("work", 7, 0.0), ("", 8, 40.0), ("work", 8, 1000.0)).due_s(60.0) == 1400.0, "it had done something"


def test_time_that_one_task_took_does_not_count_for_the_next() -> None:
    """Who was held up in an all-reduce by another one has done nothing wrong when it owes the update."""
    assert seen(("reduce", 7, 0.0), ("update", 7, 90.0)).due_s(60.0) == 150.0
    paused = seen(("reduce", 7, 0.0), ("update", 7, 90.0), ("", 7, 91.0), ("update", 7, 200.0))
    assert paused.due_s(60.0) == 259.0, "a second of it is over"


def test_pauses_grow_and_are_forgiven() -> None:
    pauses = Pauses(30.0)
    assert pauses.left("a", 0.0) == (0.0, "")
    assert [pauses.begin("a", "slept", now) for now in (0.0, 31.0, 100.0)] == [30.0, 60.0, 120.0]
    assert pauses.left("a", 160.0) == (60.0, "slept")
    assert pauses.left("a", 220.0) == (0.0, "")
    assert pauses.begin("a", "slept", 2000.0) == 30.0


def test_without_forgiveness_every_pause_counts() -> None:
    bars = Pauses(60.0, math.inf)
    assert bars.last_s("a") == 0.0
    assert [bars.begin("a", "not finite", turn * 1e6) for turn in range(2)] == [60.0, 120.0]
    assert bars.last_s("a") == 120.0
    seconds = [bars.begin("a", "not finite", turn * 1e6) for turn in range(2, 1200)]
    assert (seconds[0], seconds[-1]) == (240.0, 3600.0), "however often it was put out"


@pytest.mark.parametrize(
    ("awaits", "culprit"),
    [
        ({A: (B,), B: (), C: (B,)}, B),  # who waits for nobody has something to compute
        ({A: (B,), B: (A,), C: (B,)}, B),  # two wait for it
        ({A: (C,), B: (C,), C: (A, B)}, C),
        ({A: (B,), B: (C,), C: (A,)}, A),  # nobody is accused twice: the one that stopped first, of equals the least
    ],
)
def test_who_holds_up_an_all_reduce_is_found(
    awaits: dict[ProcessId, tuple[ProcessId, ...]], culprit: ProcessId
) -> None:
    bench = Bench()
    bench.serve(A, B, C)
    bench.hear(A, Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1))
    for sender, others in awaits.items():
        bench.hear(sender, Heartbeat(awaits=others))
    assert bench.leader.step is not None
    assert bench.leader.step.phase == "preparing"
    assert progress.blame(bench.leader, bench.leader.step) == culprit


def test_who_was_put_out_is_told_why_it_has_to_wait_and_its_heartbeats_do_not_evict_it() -> None:
    bench = Bench(timeouts=Timeouts(pause_s=30.0))
    bench.serve(A, B)
    progress.pause(bench.leader, B, "does nothing", 0.0)
    again = ProcessId(B.name, 2)
    bench.now = 10.0
    join = Join("peer", "1.0", "run", replace(member(B.name, -1), process=again))
    [(_, postponed)] = messages(bench.hear(again, join), Postponed)
    assert postponed == Postponed("it does nothing", 20.0)
    assert again not in bench.leader.membership.known
    assert not messages(bench.hear(again, Heartbeat()), Evicted)
    bench.now = 30.0
    bench.hear(again, join)
    assert again in bench.leader.membership.known
    assert process("a") in bench.leader.membership.known


def test_the_time_in_which_the_leader_itself_slept_counts_against_nobody() -> None:
    """Its own microbatches lay there, and the others it could not see: nobody is put out, and it goes on leading."""
    bench = Bench(timeouts=Timeouts(stall_s=60.0))
    bench.join(OTHER, role="trainer")
    bench.serve(A, B)
    bench.leader.forming = 1
    for bench.now in (1.0, 2.0, 3.0):
        bench.leader.handle(Tick(), bench.now)
    bench.now = 500.0
    actions = bench.leader.handle(Tick(), bench.now)
    assert not of_type(actions, Rejoin)
    assert not messages(actions, Evicted)
    for bench.now in (500.0 + second for second in range(1, 65)):
        alive = Heartbeat(epoch=bench.leader.epoch)
        actions += [action for each in (A, B, OTHER) for action in bench.hear(each, alive)]
    assert of_type(actions, Rejoin), "awake it has as long as ever"
    assert not messages(actions, Evicted)


@pytest.mark.parametrize(("forming", "after_s", "paused"), [(1, 61.0, True), (0, 481.0, False), (0, 481.0, True)])
def test_a_trainer_is_kept_out_for_what_it_does_not_form_and_for_what_nobody_takes_the_second_time(
    forming: int, after_s: float, paused: bool
) -> None:
    bench = Bench(timeouts=Timeouts(stall_s=60.0))
    bench.join(OTHER, role="trainer")
    bench.serve(A)
    assert bench.leader.step is not None
    bench.leader.step.assignment.owners[0] = OTHER
    if paused and not forming:
        bench.leader.faults.unfed[OTHER.name] = None
    bench.leader.membership.known[OTHER].duty.usual_s["offer"] = 1.0  # how soon others took some says nothing
    actions: list[Action] = []
    while not (evicted := messages(actions, Evicted)) and bench.now < 600.0:
        bench.now += 1.0
        for sender, queued in ((A, 0), (OTHER, forming)):
            actions += bench.hear(sender, Heartbeat(queued, epoch=bench.leader.epoch))
    assert {to for to, _ in evicted} == {OTHER}
    assert bench.now == pytest.approx(after_s, abs=3.0)
    assert (bench.leader.faults.pauses.left(OTHER.name, bench.now)[0] > 0) == paused


@pytest.mark.parametrize("behind", [None, Epoch(-1, 0)], ids=["joins", "earlier"])
def test_a_member_that_the_roster_of_the_step_has_not_reached_is_removed(behind: Epoch | None) -> None:
    bench = Bench(timeouts=Timeouts(stall_s=60.0))
    bench.serve(A)
    actions: list[Action] = []
    for bench.now in (float(second) for second in range(1, 61)):
        actions += bench.hear(A, Heartbeat(epoch=behind)) + bench.leader.handle(Tick(), bench.now)
    assert not messages(actions, Evicted), "it may still begin"
    for bench.now in (61.0, 62.0):
        actions += bench.hear(A, Heartbeat(epoch=behind)) + bench.leader.handle(Tick(), bench.now)
    assert messages(actions, Evicted) == [(A, Evicted("it has not begun the step"))]


@pytest.mark.parametrize("asks", ["after", "before"])
def test_a_stage_that_nobody_else_serves_takes_who_was_put_out_before_its_time(asks: str) -> None:
    bench = Bench(timeouts=Timeouts(pause_s=30.0))
    bench.serve(A, B)
    for _ in range(6):
        progress.pause(bench.leader, B, "does nothing", 0.0)
    again = ProcessId(B.name, 2)
    if asks == "before":
        assert messages(bench.join(again), Postponed) == [(again, Postponed("it does nothing", 960.0))]
    bench.leader.handle(Lost(A, "reset"), 0.0)
    [(to, granted)] = messages(bench.join(again), Granted)
    assert (to, granted.stage) == (again, 0)
    assert messages(bench.hear(again, Ready(0, 0, "root", 4, granted.grant)), OpenStep)


def test_who_was_put_out_comes_back_early_only_where_it_may_serve_and_nobody_is_coming() -> None:
    bench = Bench(timeouts=Timeouts(pause_s=30.0), stages=2)
    for peer, stage in ((A, 0), (B, 1), (C, 0)):
        bench.join(peer, stage)
    bench.ready(A, 0)
    bench.ready(B, 1)
    progress.pause(bench.leader, C, "does nothing", 0.0)
    bench.leader.handle(Lost(B, "reset"), 0.0)
    again = ProcessId(C.name, 2)
    assert messages(bench.join(again, 0), Postponed), "it serves stage 0 alone, which has another peer"
    bench.join(D, 1)
    assert messages(bench.join(again, 1), Postponed), "somebody loads stage 1"
    bench.leader.handle(Lost(D, "reset"), 0.0)
    assert [granted.stage for _, granted in messages(bench.join(again, 1), Granted)] == [1]


# --- who reports no root ---------------------------------------------------------------------------------------------


def finishing(silent: ProcessId, *others: ProcessId) -> Bench:
    """A run whose last step is committed, and of whose peers one has not reported the root of the last version."""
    bench = Bench(replace(SETTINGS, steps=1), timeouts=Timeouts(stall_s=60.0))
    bench.serve(silent, *others)
    bench.committing()
    for peer in (silent, *others):
        bench.hear(peer, Committed(Epoch(0, 0), 1))
    for peer in others:
        bench.hear(peer, StateRoot(0, 1, "root"))
    return bench


def beats(bench: Bench, until_s: float, *peers: ProcessId) -> list[Action]:
    actions: list[Action] = []
    while bench.now < until_s:
        bench.now += 1.0
        actions += [action for peer in peers for action in bench.hear(peer, Heartbeat())]
    return actions


def test_who_reports_no_root_is_asked_again_and_put_out_where_its_stage_agrees_without_it() -> None:
    bench = finishing(B, A)
    assert messages(beats(bench, 125.0, A, B), ReportRoot) == [(B, ReportRoot(1))]
    actions = beats(bench, 375.0, A, B)
    assert [to for to, _ in messages(actions, Evicted)] == [B]
    assert [write.last for write in of_type(actions, WriteCheckpoint)] == [True]


def test_a_slow_hash_that_ends_after_the_second_question_puts_nobody_out() -> None:
    bench = finishing(B, A)
    beats(bench, 350.0, A, B)
    assert of_type(bench.hear(B, StateRoot(0, 1, "root")), WriteCheckpoint)
    assert not messages(beats(bench, 600.0, A, B), Evicted)


def test_who_alone_serves_its_stage_and_reports_no_root_is_waited_for_with_a_reason() -> None:
    bench = finishing(A)
    assert not messages(beats(bench, 400.0, A), Evicted)
    assert "a.0001 of stage 0: it does not report the root of its state" in bench.leader.waiting_for


# --- who sums for another stage ---------------------------------------------------------------------------------------


def reducing(*helpers: ProcessId, ballot_s: float = 60.0) -> Bench:
    """Two stages amid an all-reduce: A and B at stage 0, between which the way is slow, and these at stage 1."""
    bench = Bench(timeouts=Timeouts(ballot_s=ballot_s), stages=2)
    places = {A: 0, B: 0, **dict.fromkeys(helpers, 1)}
    for peer, stage in places.items():
        bench.join(peer, stage)
    for peer, stage in places.items():
        bench.ready(peer, stage)
    for peer, other in ((A, B), (B, A)):
        ways = ((other, 1e6), *((helper, 1e9) for helper in helpers))
        bench.hear(peer, LinkRateReport((("stage-0", 1 << 24),), ways))
    for peer, stage in ((A, 0), (helpers[0], 1)):
        actions = bench.hear(peer, Done(microbatch(0), stage, FIRST_ATTEMPT, 2.0, 1))
    prepared = dict(messages(actions, Prepare))
    assert set(helpers) <= set(prepared[A].groups[0].owners), "they sum for stage 0"
    return bench


def done(bench: Bench, *peers: ProcessId) -> list[Action]:
    step = bench.leader.step
    assert step is not None
    said = Prepared(step.epoch, step.ballot.number, (("stage-1", 1.0, "x"),))
    return [action for peer in peers for action in bench.hear(peer, said)]


@pytest.mark.parametrize(
    ("awaits", "culprit"),
    [
        ({A: (C,), B: (C,)}, C),
        ({A: (C,), B: (A,)}, C),
        ({A: (C,), B: (A, C)}, C),
        ({A: (process("stranger"),), B: (C,)}, A),  # it names nobody who takes part
        ({A: (B,), B: (A,)}, A),
    ],
)
def test_who_is_done_and_keeps_its_sums_from_another_stage_holds_up_the_all_reduce(
    awaits: dict[ProcessId, tuple[ProcessId, ...]], culprit: ProcessId
) -> None:
    bench = reducing(C, D)
    done(bench, C, D)
    for sender, others in awaits.items():
        bench.hear(sender, Heartbeat(awaits=others))
    assert bench.leader.step is not None
    assert progress.blame(bench.leader, bench.leader.step) == culprit


def test_who_alone_serves_its_stage_and_keeps_its_sums_is_asked_for_none_any_more() -> None:
    bench = reducing(C, ballot_s=5.0)
    prepares: list[Prepare] = []
    while len(prepares) < 2 and bench.now < 60.0:
        bench.now += 1.0
        actions = done(bench, C)
        for peer, others in ((A, (C,)), (B, (C,)), (C, ())):
            actions += bench.hear(peer, Heartbeat(awaits=others))
        prepares += [prepare for to, prepare in messages(actions, Prepare) if to == A]
    assert len(bench.leader.membership.known) == 4, "nobody was put out"
    assert [C in prepare.groups[0].owners for prepare in prepares] == [True, False]


# --- who keeps a report back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silent", "serving", "goes"),
    [(A, (A, B, C, D), A), (C, (A, B, C, D), C), (A, (A, C, D), C), (C, (A, B, C), A), (A, (A, C), A)],
)
def test_who_reports_nothing_of_a_microbatch_that_another_stage_is_done_with_has_to_go(
    silent: ProcessId, serving: tuple[ProcessId, ...], goes: ProcessId
) -> None:
    """Its trainer has done its part, as the handovers show; the last stage's peer is named by the one before it.

    Who says so may be the liar: it goes in the place of a peer whose stage has nobody else.
    """
    bench = Bench(timeouts=Timeouts(stall_s=10.0), stages=2)
    places = {peer: stage for peer, stage in {A: 0, B: 0, C: 1, D: 1}.items() if peer in serving}
    for peer, stage in places.items():
        bench.join(peer, stage)
    for peer, stage in places.items():
        bench.ready(peer, stage)
    first, second = HopHandover(ME.process, 0, FIRST_ATTEMPT), HopHandover(A, 1, FIRST_ATTEMPT)
    reports = {
        A: Done(microbatch(0), 0, FIRST_ATTEMPT, handovers=(first,), successor=C),
        C: Done(microbatch(0), 1, FIRST_ATTEMPT, 2.0, 1, (second, first)),
    }
    del reports[silent]
    for reporter, report in reports.items():
        bench.hear(reporter, report)
    actions: list[Action] = []
    while bench.now < 30.0:
        bench.now += 1.0
        actions += [action for peer in places for action in bench.hear(peer, Heartbeat(epoch=bench.leader.epoch))]
    assert [to for to, _ in messages(actions, Evicted)][:1] == [goes]
    assert reports.keys() - {goes} <= bench.leader.membership.known.keys()
    text = f"{silent} reports nothing of a microbatch that another stage says it has had"
    assert text in of_type(actions, Log)[0].text


def test_a_gradient_that_waits_for_a_slow_link_is_no_report_that_is_missing() -> None:
    """The stage after has computed the microbatch, and its peer sends seven other gradients first, 10 s each."""
    bench = Bench(timeouts=Timeouts(stall_s=10.0), stages=2)
    bench.leader.plan = replace(bench.leader.plan, microbatches=8, boundary_bytes=1_000_000)
    for peer, stage in {A: 0, B: 0, C: 1}.items():
        bench.join(peer, stage)
        bench.hear(peer, LinkRateReport((), ((OTHER, 100_000.0),)))
    for peer in (A, B, C):
        bench.ready(peer, 1 if peer == C else 0)
    first, second = HopHandover(ME.process, 0, FIRST_ATTEMPT), HopHandover(A, 1, FIRST_ATTEMPT)
    bench.hear(C, Done(microbatch(0), 1, FIRST_ATTEMPT, 2.0, 1, (second, first)))
    gone_s = math.inf
    while bench.now < 150.0 and gone_s == math.inf:
        bench.now += 1.0
        for peer in (A, B, C):
            if messages(bench.hear(peer, Heartbeat(epoch=bench.leader.epoch)), Evicted):
                gone_s = bench.now
    assert 20.0 + 80.0 <= gone_s < 110.0
