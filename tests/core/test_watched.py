"""What those who watch a run are shown: kinds of events, whose work was taken over, and the peers' summaries."""

from __future__ import annotations

from swarmflow.core.commit.step import Step
from swarmflow.core.commit.step_phase import StepPhase
from swarmflow.core.protocol.actions import Action, Log
from swarmflow.core.protocol.events import Lost, Summarized
from swarmflow.core.protocol.messages import Done, OpenStep, PeerSummary
from swarmflow.core.protocol.messages.checks import checks_of
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Plan, Roster
from tests.core.peer_bench import LEADER
from tests.core.peer_bench import Bench as PeerBench
from tests.core.samples import EPOCH, LINEAGE, REPAIR, member, messages, microbatch, of_type, process
from tests.core.test_leader import Bench as LeaderBench

A, B, C, LAST = process("a"), process("b"), process("c"), process("last")
PLAN = Plan(stages=2, microbatches=4)
ROSTER = Roster((tuple(map(member, "abc")), (member("last", 1),)), (member("t", -1),))


def texts(actions: list[Action], kind: EventKind) -> list[str]:
    return [log.text for log in of_type(actions, Log) if log.kind is kind]


def test_it_is_told_once_who_takes_over_from_a_dead_peer_and_then_how_much_was_done_again() -> None:
    step = Step(PLAN, 1, OpenStep(1, EPOCH, ROSTER, LINEAGE), 0.1, 0.0, opened_s=0.0)
    step.done(A, Done(microbatch(0), 0, FIRST_ATTEMPT))
    step.done(B, Done(microbatch(1), 0, FIRST_ATTEMPT))
    step.gone(A, "its connection broke")
    [first] = texts(step.done(B, Done(microbatch(0), 0, REPAIR)), EventKind.REPAIRED)
    assert first.startswith(f"{B} takes over from {A} on stage 0")
    assert not texts(step.done(C, Done(microbatch(2), 0, REPAIR)), EventKind.REPAIRED)
    assert not texts(step.done(C, Done(microbatch(3), 0, FIRST_ATTEMPT)), EventKind.REPAIRED)
    last = [step.done(LAST, Done(microbatch(index), 1, FIRST_ATTEMPT, 4.0, 2)) for index in range(4)]
    assert step.phase is StepPhase.COMPLETE
    told = texts([action for actions in last for action in actions], EventKind.REPAIRED)
    assert told == [f"2 microbatches were done again on stage 0 for {A}: 1 by {B}, 1 by {C}"]


def test_a_step_without_a_death_has_no_repair() -> None:
    step = Step(Plan(stages=2, microbatches=1), 1, OpenStep(1, EPOCH, ROSTER, LINEAGE), 0.1, 0.0, opened_s=0.0)
    done = step.done(A, Done(microbatch(0), 0, REPAIR))  # its predecessor's link broke: nobody died
    done += step.done(LAST, Done(microbatch(0), 1, FIRST_ATTEMPT, 4.0, 2))
    assert step.phase is StepPhase.COMPLETE
    assert not texts(done, EventKind.REPAIRED)


def test_a_peer_sends_its_summary_to_the_leader_unless_that_is_lost() -> None:
    bench, summary = PeerBench(), PeerSummary(hops=3, reach="public")
    assert messages(bench.event(Summarized(summary)), PeerSummary) == [(LEADER, summary)]
    bench.event(Lost(LEADER, "its connection broke"))
    assert not messages(bench.event(Summarized(summary)), PeerSummary)


def test_the_leader_keeps_the_last_summary_and_its_events_have_kinds() -> None:
    bench, summary = LeaderBench(), PeerSummary(hops=3, reach="public")
    [text] = texts(bench.join(A), EventKind.LOADING)
    assert text.startswith(f"peer {A} loads stage 0")
    assert texts(bench.ready(A), EventKind.SERVING) == [f"peer {A} has loaded stage 0 at version 0"]
    bench.hear(A, summary)
    assert bench.leader.membership.known[A].summary == summary
    logs = of_type(bench.leader.handle(Lost(A, "reset"), 0.0), Log)
    assert [(log.process, log.stage) for log in logs if log.kind is EventKind.DIED] == [(A, 0)]


def test_a_summary_that_cannot_be_true_is_refused() -> None:
    for wrong in (PeerSummary(hops=-1), PeerSummary(compute_s=float("nan")), PeerSummary(metrics_port=70_000)):
        assert checks_of(PLAN).wrong(wrong) is not None
    assert checks_of(PLAN).wrong(PeerSummary(hops=10**9, compute_s=1e6, reach="relay", metrics_port=9100)) is None
    years = PeerSummary(tokens=10**13, sent_bytes=10**15, received_bytes=10**15)  # of a peer that is healthy
    assert checks_of(PLAN).wrong(years) is None
