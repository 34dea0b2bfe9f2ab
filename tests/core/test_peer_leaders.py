"""A peer and its leaders: whom it follows, what it reports, and what it tells those who lead no more."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.protocol.actions import Action, Apply, Connect, Count, Log, Rejoin, Reset, RunLoss
from swarmflow.core.protocol.events import (
    Applied,
    ComputeFailed,
    DrainAsked,
    Event,
    LossComputed,
    Lost,
    Overflowed,
    Received,
    Sealed,
    StateLoaded,
    Tick,
)
from swarmflow.core.protocol.messages import (
    Commit,
    Committed,
    Deposed,
    Done,
    Drain,
    Elect,
    ElectionReport,
    Forward,
    Granted,
    Heartbeat,
    Join,
    LeaderHeartbeat,
    MemberFailed,
    Message,
    OpenStep,
    Overflow,
    Prepare,
    Prepared,
    Ready,
    Released,
    StepResult,
    Suspect,
    Tally,
    Unrepairable,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Group, Member, Plan, ProcessId, Ref, Roster
from tests.core.samples import EPOCH, LINEAGE, member, messages, microbatch, of_type, process

ME, MATE, STRANGER = process("me"), process("mate"), process("x")
LEADER, NEXT, THIRD = process("t0"), process("t1"), process("t2")
TRAINERS = (member("t0", -1), member("t1", -1), member("t2", -1))
ROSTER = Roster(((member("mate"), member("me")),), TRAINERS)
OPENED = OpenStep(1, EPOCH, ROSTER, LINEAGE, exponent=20)
TALLY = Tally(2.0, 2, 0)
RESULTS = (("stage-0", 1.0, "x"),)
COMMIT = Commit(1, EPOCH, 1, 0.5, 0.1, StepResult(1, EPOCH, 2.0, 2, 1.0, 1.0, 0.1, 1, (2,), 0))
PREPARE = Prepare(1, EPOCH, 1, ((0, FIRST_ATTEMPT),), (Group("stage-0", (ME,), ballot=1),), TALLY, (member("n"),))
LEAD = Elect(2, TRAINERS[1])


@dataclass
class Bench:
    """A peer of a run with one stage, which follows trainer t0 in term 1."""

    now: float = 0.0
    peer: PeerMachine = field(init=False)

    def __post_init__(self) -> None:
        join = Join("peer", "1.0", "run", Member(ME, -1))
        self.peer = PeerMachine(ME, LeaderLease(LEADER), Plan(1, 2), PeerSettings(join))

    def event(self, event: Event) -> list[Action]:
        return self.peer.handle(event, self.now)

    def hear(self, message: Message, sender: ProcessId = LEADER, bodies: tuple[Ref, ...] = ()) -> list[Action]:
        return self.event(Received(sender, message, bodies))

    def load(self, grant: int = 0) -> list[Action]:
        self.hear(Granted(1, 0, 0, (), grant))
        return self.event(StateLoaded(0, 0, "digest", 4, (("stage-0", 10),)))

    def serve(self, opened: OpenStep = OPENED) -> list[Action]:
        self.load()
        return self.hear(opened)

    def work(self) -> None:
        """Accumulate microbatch 0."""
        self.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), bodies=(Ref(1), Ref(2)))
        self.event(LossComputed(microbatch(0), 2.0, 1, Ref(3)))

    def lose(self) -> list[Action]:
        return self.event(Lost(LEADER, "reset"))

    def wait(self, seconds: int) -> list[Action]:
        """Let time pass, and be woken each second."""
        actions: list[Action] = []
        for _ in range(seconds):
            self.now += 1.0
            actions += self.event(Tick())
        return actions


def reported(actions: list[Action]) -> ElectionReport:
    [(to, report)] = messages(actions, ElectionReport)
    assert to == NEXT
    return report


# --- without a leader -------------------------------------------------------------------------------------------------


def test_a_member_that_loses_its_leader_works_on_and_waits_for_another() -> None:
    bench = Bench()
    bench.serve()
    assert [log.level for log in of_type(bench.lose(), Log)] == ["warning"]
    assert bench.lose() == [], "told once"
    assert of_type(bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), NEXT, (Ref(1), Ref(2))), RunLoss)
    assert not of_type(bench.wait(25), Rejoin)
    assert of_type(bench.wait(1), Rejoin), "nobody came"


def test_what_did_not_reach_the_leader_is_missing_in_the_count_that_it_is_told_when_it_is_back() -> None:
    def said(bench: Bench) -> list[int]:
        return [message.sent for to, message in messages(bench.wait(1), Heartbeat) if to == LEADER]

    bench, undisturbed = Bench(), Bench()
    for each in (bench, undisturbed):
        each.serve()
        each.work()
    bench.lose()
    bench.hear(LeaderHeartbeat(1, OPENED.epoch))
    assert said(bench)[0] == said(undisturbed)[0] > 1


def test_one_that_no_other_trainer_can_know_of_joins_again_at_once() -> None:
    bench = Bench()
    bench.load()
    assert of_type(bench.lose(), Rejoin), "in no epoch"
    bench = Bench()
    bench.serve(OpenStep(1, EPOCH, Roster(ROSTER.stages, TRAINERS[:1]), LINEAGE))
    assert of_type(bench.lose(), Rejoin), "no other trainer"
    bench = Bench()
    bench.serve()
    bench.hear(MemberFailed(1, EPOCH, NEXT, "silent"))
    bench.hear(MemberFailed(1, EPOCH, THIRD, "silent"))
    assert of_type(bench.lose(), Rejoin), "none that lives"


def test_it_does_not_wait_for_heirs_that_are_dead_too() -> None:
    bench = Bench()
    bench.serve()
    bench.lose()
    assert [to for to, _ in messages(bench.wait(1), Heartbeat)] == [NEXT, THIRD], "which shows whether they are there"
    assert not of_type(bench.event(Lost(NEXT, "cannot be reached")), Rejoin)
    assert [to for to, _ in messages(bench.wait(1), Heartbeat)] == [THIRD]
    assert of_type(bench.event(Lost(THIRD, "cannot be reached")), Rejoin)


def test_a_silent_leader_is_lost() -> None:
    bench = Bench()
    bench.serve()
    assert [to for to, _ in messages(bench.wait(10), Heartbeat)] == [LEADER] * 10
    assert LEADER not in {to for to, _ in messages(bench.wait(5), Heartbeat)}


# --- another leader ---------------------------------------------------------------------------------------------------


def test_another_leader_is_followed_only_if_the_former_one_is_in_doubt() -> None:
    bench = Bench()
    bench.serve()
    assert not messages(bench.hear(LEAD, NEXT), ElectionReport)
    bench.wait(3)
    assert not messages(bench.hear(LEAD, NEXT), ElectionReport)
    bench.wait(1)
    actions = bench.hear(LEAD, NEXT)
    assert reported(actions).term == 2
    assert of_type(actions, Connect) == [Connect((TRAINERS[1],))]
    assert bench.peer.leader == NEXT
    assert [to for to, _ in messages(bench.wait(1), Heartbeat)] == [NEXT]


def test_who_is_followed_is_told_again_whenever_it_asks() -> None:
    bench = Bench()
    bench.serve()
    bench.lose()
    assert reported(bench.hear(LEAD, NEXT)).done == ()
    bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), THIRD, (Ref(1), Ref(2)))
    [(to, _)] = messages(bench.event(LossComputed(microbatch(0), 2.0, 1, Ref(3))), Done)
    assert to == NEXT
    assert len(reported(bench.hear(LEAD, NEXT)).done) == 1
    assert reported(bench.hear(Elect(3, TRAINERS[1]), NEXT)).term == 3, "it may need a later term to be elected"


def test_a_promise_binds_to_its_term() -> None:
    bench = Bench()
    bench.serve()
    bench.lose()
    bench.hear(LEAD, NEXT)
    assert messages(bench.hear(Elect(2, TRAINERS[2]), THIRD), Deposed) == [(THIRD, Deposed(2))]
    assert not messages(bench.hear(Elect(3, TRAINERS[2]), THIRD), ElectionReport), (
        "the one it follows was heard of just now"
    )
    bench.wait(4)
    [(to, _)] = messages(bench.hear(Elect(3, TRAINERS[2]), THIRD), ElectionReport)
    assert to == THIRD


def test_only_a_living_trainer_of_the_epoch_is_followed() -> None:
    bench = Bench()
    bench.serve()
    bench.hear(MemberFailed(1, EPOCH, NEXT, "silent"))
    bench.lose()
    for sender in (STRANGER, MATE, NEXT):
        assert Count("messages_ignored", "Elect") in bench.hear(LEAD, sender)
    assert bench.peer.leader == LEADER


# --- what it reports --------------------------------------------------------------------------------------------------


def test_a_report_holds_all_that_was_done_heard_and_lost() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.event(Lost(MATE, "reset"))
    bench.hear(MemberFailed(1, EPOCH, THIRD, "silent"))
    bench.event(DrainAsked())
    bench.lose()
    report = reported(bench.hear(LEAD, NEXT))
    assert report.join == Join("peer", "1.0", "run", Member(ME, -1))
    assert report.member == Member(ME, 0, 4)
    assert (report.ready, report.version, report.draining) == (True, 0, True)
    assert (report.opened, report.gone, report.suspects) == (OPENED, (THIRD,), (MATE,))
    assert report.done == (Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 1),)
    assert (report.ballot, report.tally, report.results, report.commit, report.applied) == (0, None, (), None, False)


def test_a_report_says_how_far_a_ballot_came() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(PREPARE)
    bench.lose()
    report = reported(bench.hear(LEAD, NEXT))
    assert (report.ballot, report.tally, report.results, report.newcomers) == (1, TALLY, (), (member("n"),))
    assert messages(bench.event(Sealed(EPOCH, 1, RESULTS)), Prepared)[0][0] == NEXT
    assert reported(bench.hear(LEAD, NEXT)).results == RESULTS


def test_a_report_does_not_offer_a_sum_in_which_a_bit_has_flipped() -> None:
    """Its former leader cannot have committed that, and the next one may have nobody else of the stage to ask."""
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(PREPARE)
    flipped = (("stage-0", 1.0, ""),)
    assert messages(bench.event(Sealed(EPOCH, 1, flipped)), Prepared) == [(LEADER, Prepared(EPOCH, 1, flipped))]
    bench.lose()
    assert reported(bench.hear(LEAD, NEXT)).results == ()


def test_a_report_tells_of_a_commit_and_whether_it_is_applied() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(PREPARE)
    bench.event(Sealed(EPOCH, 1, RESULTS))
    bench.hear(COMMIT)
    bench.lose()
    report = reported(bench.hear(LEAD, NEXT))
    assert (report.commit, report.version, report.applied) == (COMMIT, 0, False)
    assert messages(bench.event(Applied(EPOCH)), Committed) == [(NEXT, Committed(EPOCH, 1))]
    report = reported(bench.hear(LEAD, NEXT))
    assert (report.commit, report.version, report.applied) == (COMMIT, 1, True)


def test_a_report_of_one_that_loads_says_that_it_is_not_ready() -> None:
    bench = Bench()
    bench.serve()
    bench.hear(Granted(1, 0, 0, (), grant=0))
    bench.lose()
    report = reported(bench.hear(LEAD, NEXT))
    assert (report.ready, report.version, report.member.stage, report.done) == (False, -1, 0, ())


def test_what_a_former_leader_granted_is_not_taken_for_a_grant_of_the_next() -> None:
    """The next leader counts its grants anew, and grants again whatever is still being loaded."""
    bench = Bench()
    bench.serve()
    bench.hear(Granted(1, 0, 0, (), grant=0))
    bench.lose()
    bench.hear(LEAD, NEXT)
    [(to, ready)] = messages(bench.event(StateLoaded(0, 0, "digest", 4, (("stage-0", 10),))), Ready)
    assert (to, ready.grant) == (NEXT, -1)


# --- a step over a change of leaders ----------------------------------------------------------------------------------


def test_a_commit_told_twice_is_applied_once() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(PREPARE)
    bench.event(Sealed(EPOCH, 1, RESULTS))
    assert of_type(bench.hear(COMMIT), Apply) == [Apply(EPOCH, 0.5, 0.1)]
    bench.lose()
    bench.hear(LEAD, NEXT)
    for applied in (False, True):
        actions = bench.hear(Commit(2, EPOCH, 1, 0.5, 0.1, COMMIT.result), NEXT)
        assert not of_type(actions, Apply | Rejoin), applied  # type: ignore[arg-type]  # isinstance takes a union
        bench.event(Applied(EPOCH))


def test_a_commit_that_the_former_leader_had_no_time_for_is_applied() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(PREPARE)
    bench.event(Sealed(EPOCH, 1, RESULTS))
    bench.lose()
    bench.hear(LEAD, NEXT)
    assert of_type(bench.hear(Commit(2, EPOCH, 1, 0.5, 0.1, COMMIT.result), NEXT), Apply)


def test_a_ballot_of_the_next_leader_reduces_what_was_done_under_the_former() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.lose()
    bench.hear(LEAD, NEXT)
    bench.hear(MemberFailed(2, EPOCH, LEADER, "not heard of"), NEXT)
    bench.hear(Prepare(2, EPOCH, 1, ((0, FIRST_ATTEMPT),), (Group("stage-0", (ME,), ballot=1),), TALLY), NEXT)
    assert messages(bench.event(Sealed(EPOCH, 1, RESULTS)), Prepared) == [(NEXT, Prepared(EPOCH, 1, RESULTS))]


@pytest.mark.parametrize(
    "message",
    [
        LeaderHeartbeat(1, EPOCH),
        COMMIT,
        PREPARE,
        MemberFailed(1, EPOCH, MATE, "silent"),
        OpenStep(1, Epoch(0, 1), ROSTER, LINEAGE),
    ],
)
def test_a_former_leader_is_told_that_it_is_one(message: Message) -> None:
    bench = Bench()
    bench.serve()
    bench.lose()
    bench.hear(LEAD, NEXT)
    actions = bench.hear(message)
    assert messages(actions, Deposed) == [(LEADER, Deposed(2))]
    assert Count("messages_ignored", type(message).__name__) in actions
    assert not of_type(actions, Rejoin)
    assert bench.peer.epoch == EPOCH


def test_a_former_leaders_words_without_a_term_are_ignored() -> None:
    bench = Bench()
    bench.serve()
    bench.lose()
    bench.hear(LEAD, NEXT)
    assert bench.hear(Released()) == [Count("messages_ignored", "Released")]


def test_one_that_a_later_leader_has_passed_over_joins_again() -> None:
    bench = Bench()
    bench.serve()
    assert not of_type(bench.hear(MemberFailed(1, EPOCH, ME, "so I say"), NEXT), Rejoin)
    assert not of_type(bench.hear(MemberFailed(2, EPOCH, ME, "so I say"), STRANGER), Rejoin)
    assert of_type(bench.hear(MemberFailed(2, EPOCH, ME, "not heard of"), NEXT), Rejoin)


def test_suspects_and_drains_go_to_the_leader_that_is_followed() -> None:
    bench = Bench()
    bench.serve()
    bench.lose()
    bench.hear(LEAD, NEXT)
    assert [to for to, _ in messages(bench.event(Lost(MATE, "reset")), Suspect)] == [NEXT]
    assert not of_type(bench.event(Lost(LEADER, "reset")), Log), "it is no leader of this peer any more"
    assert [to for to, _ in messages(bench.event(DrainAsked()), Drain)] == [NEXT]


# --- exact accumulation -----------------------------------------------------------------------------------------------


def test_a_step_is_accumulated_with_its_exponent_and_what_does_not_fit_is_told() -> None:
    bench = Bench()
    assert of_type(bench.serve(), Reset) == [Reset(20)]
    bench.hear(Forward(microbatch(0), 0, FIRST_ATTEMPT), bodies=(Ref(1), Ref(2)))
    told = messages(bench.event(Overflowed(microbatch(0))), Overflow)
    assert told == [(LEADER, Overflow(microbatch(0)))]
    assert not messages(bench.event(Overflowed(microbatch(0, Epoch(1, 0)))), Overflow)


# --- what the next leader has to know ---------------------------------------------------------------------------------


def test_a_step_that_must_start_over_is_reported_to_the_next_leader_too() -> None:
    """The leader may have died with the message, and nobody else knows of it."""
    bench = Bench()
    bench.serve()
    bench.work()
    [(to, unrepairable)] = messages(bench.event(ComputeFailed(microbatch(0), "it does not decode")), Unrepairable)
    assert (to, unrepairable.epoch) == (LEADER, EPOCH)
    bench.lose()
    assert reported(bench.hear(LEAD, NEXT)).void.startswith("the bytes of microbatch 0 ")


def test_an_overflow_is_reported_to_the_next_leader_too() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.event(Overflowed(microbatch(0)))
    bench.lose()
    assert "microbatch 0 is too large" in reported(bench.hear(LEAD, NEXT)).void


def test_who_was_granted_another_state_amid_a_step_reports_that_its_work_is_gone() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(Granted(1, 0, 0, (), 1))
    bench.event(StateLoaded(0, 0, "digest", 4, (("stage-0", 10),)))
    bench.lose()
    report = reported(bench.hear(LEAD, NEXT))
    assert report.ready
    assert report.abandoned
    assert report.done == ()


def test_a_new_epoch_begins_without_either() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.event(Overflowed(microbatch(0)))
    bench.hear(Granted(1, 0, 0, (), 1))
    bench.event(StateLoaded(0, 0, "digest", 4, (("stage-0", 10),)))
    bench.hear(replace(OPENED, epoch=Epoch(1, 0)))
    bench.lose()
    report = reported(bench.hear(LEAD, NEXT))
    assert (report.void, report.abandoned) == ("", False)
