"""A trainer that has lost its leader: it stands, follows another one, or takes over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow import latest
from swarmflow.core.election.term_claims import TermClaims
from swarmflow.core.machines.feeding.trainer_phase import TrainerPhase
from swarmflow.core.protocol.actions import Count, Exit, Forget, Rejoin, TookOver
from swarmflow.core.protocol.events import BlamedError, DrainAsked, Mishandled
from swarmflow.core.protocol.messages import (
    Assign,
    Deposed,
    Done,
    Drain,
    Elect,
    ElectionReport,
    Evicted,
    Heartbeat,
    Join,
    LeaderHeartbeat,
    MemberFailed,
    Welcome,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Member, ProcessId
from tests.core.samples import EPOCH, member, messages, microbatch, of_type
from tests.core.test_trainer import (
    LEADER,
    OPENED,
    PEERS,
    PLAN,
    RESULT,
    SECOND,
    SETTINGS,
    STRANGER,
    THIRD,
    TRAINERS,
    A,
    B,
    Bench,
    C,
    elected,
    lease,
)


def test_the_first_in_the_roster_stands_at_once_and_the_next_later() -> None:
    bench = Bench("t1")
    bench.join()
    assert {to for to, _ in messages(bench.lose(), Elect)} == {A, B, C, LEADER, THIRD}
    bench = Bench("t2")
    bench.join()
    assert not messages(bench.lose(), Elect)
    assert not messages(bench.wait(PLAN.timeouts.election_turn_s - 0.1), Elect)
    asked = messages(bench.wait(0.1), Elect)
    assert {to for to, _ in asked} == {A, B, C, LEADER, SECOND}
    assert {message.term for _, message in asked} == {2}


def test_the_dead_keep_no_place_in_the_line() -> None:
    bench = Bench("t2")
    bench.join()
    bench.hear(MemberFailed(1, EPOCH, SECOND, "silent"))
    assert {to for to, _ in messages(bench.lose(), Elect)} == {A, B, C, LEADER}


def test_silence_is_a_loss() -> None:
    bench = Bench()
    bench.join()
    assert not messages(bench.wait(10.0), Elect)
    assert messages(bench.wait(1.0), Elect)


def test_one_that_was_in_no_epoch_looks_for_the_run_anew() -> None:
    bench = Bench()
    bench.hear(Welcome(1))
    assert of_type(bench.lose(), Rejoin)


def test_one_that_is_leaving_does_not_stand() -> None:
    bench = Bench()
    bench.join()
    assert messages(bench.event(DrainAsked()), Drain)
    actions = bench.lose()
    assert of_type(actions, Rejoin)
    assert not messages(actions, Elect)


def test_one_that_is_asked_to_leave_while_it_stands_stops_as_a_leader_does() -> None:
    bench = Bench()
    bench.join()
    bench.lose()
    bench.event(DrainAsked())
    for peer in PEERS:
        bench.hear(lease(peer), peer.process)
    actions = bench.wait(3.0)
    assert of_type(actions, TookOver)
    assert [end.ok for end in of_type(actions, Exit)] == [True], "nothing is learnt yet"


def test_what_was_for_the_leader_of_a_candidacy_that_was_given_up_is_not_heard_in_a_later_one() -> None:
    bench = Bench()
    bench.join()
    bench.lose()
    bench.hear(lease(PEERS[0]), A)
    bench.hear(Drain(), A)
    assert bench.trainer.waiting
    bench.wait(PLAN.timeouts.candidacy_s + 1.0)
    assert bench.trainer.lease.term == 3
    assert not bench.trainer.waiting


def test_one_that_is_not_elected_stands_again_in_a_later_term_and_gives_up_in_the_end() -> None:
    bench = Bench()
    bench.join()
    bench.lose()
    assert {message.term for _, message in messages(bench.wait(PLAN.timeouts.candidacy_s), Elect)} == {2}
    assert {message.term for _, message in messages(bench.wait(1.0), Elect)} == {3}
    actions = bench.wait(PLAN.timeouts.majority_s)
    assert not of_type(actions, TookOver), "nobody has followed who holds the state of the stage"
    assert of_type(actions, Rejoin)


def test_it_yields_to_a_higher_term_and_to_no_lower_one() -> None:
    bench = Bench()
    bench.join()
    bench.lose()
    assert messages(bench.hear(Elect(1, TRAINERS[2]), THIRD), Deposed) == [(THIRD, Deposed(2))]
    assert not messages(bench.hear(Elect(2, TRAINERS[2]), THIRD), ElectionReport), "it stands in this term itself"
    [(to, report)] = messages(bench.hear(Elect(3, TRAINERS[2]), THIRD), ElectionReport)
    assert (to, report.term, report.indices) == (THIRD, 3, (1,))
    assert bench.trainer.leader == THIRD
    assert not messages(bench.wait(9.0), Elect), "it follows, and stands no more"


def test_whoever_hears_the_leader_does_not_follow_another() -> None:
    bench = Bench()
    bench.join()
    assert not messages(bench.hear(Elect(2, TRAINERS[2]), THIRD), ElectionReport)
    bench.wait(4.0)
    assert messages(bench.hear(Elect(2, TRAINERS[2]), THIRD), ElectionReport), "silent for longer than is sure"
    assert messages(bench.hear(Elect(2, TRAINERS[2]), THIRD), ElectionReport), "asked again, it tells again"
    [(_, report)] = messages(bench.hear(Elect(3, TRAINERS[2]), THIRD), ElectionReport)
    assert report.term == 3, "who is followed may need a later term to be elected"


def test_only_a_living_trainer_of_the_epoch_is_followed() -> None:
    bench = Bench()
    bench.join()
    bench.hear(MemberFailed(1, EPOCH, THIRD, "silent"))
    bench.wait(4.0)
    for sender in (STRANGER, A, THIRD):
        assert Count("messages_ignored", "Elect") in bench.hear(Elect(2, TRAINERS[2]), sender)
    assert bench.trainer.leader == LEADER


def test_a_leader_that_is_back_before_anybody_has_promised_leads_on() -> None:
    bench = Bench()
    bench.join()
    bench.lose()
    assert not messages(bench.hear(LeaderHeartbeat(1, EPOCH)), Deposed)
    assert bench.trainer.candidacy is None
    assert [to for to, _ in messages(bench.wait(1.0), Heartbeat)] == [LEADER]


def test_a_leader_that_is_back_too_late_is_told_and_not_heard_any_more() -> None:
    bench = Bench()
    bench.join()
    bench.lose()
    bench.hear(lease(PEERS[0]), A)
    assert messages(bench.hear(LeaderHeartbeat(1, EPOCH)), Deposed) == [(LEADER, Deposed(2))]
    later = replace(OPENED, epoch=Epoch(0, 1))
    for message in (later, RESULT, Assign(1, EPOCH, (2,), 1), MemberFailed(1, EPOCH, A, "silent")):
        assert Count("messages_ignored", type(message).__name__) in bench.hear(message)
    assert bench.trainer.epoch == EPOCH, "its followers go on from there"


def test_what_a_leader_said_before_it_was_lost_may_come_after_that() -> None:
    bench = Bench()
    bench.join()
    bench.lose()
    later = replace(OPENED, epoch=Epoch(0, 1))
    assert messages(bench.hear(later), Elect), "it stands anew"
    assert bench.trainer.candidacy is not None
    assert bench.trainer.candidacy.latest() == later


def test_a_later_term_that_it_hears_of_makes_it_stand_in_a_later_one() -> None:
    bench = Bench()
    bench.join()
    bench.lose()
    assert not messages(bench.hear(Deposed(9), A), Elect), "one of the six may lie"
    assert {message.term for _, message in messages(bench.hear(Deposed(7), B), Elect)} == {8}


def test_a_later_leader_that_has_passed_it_over_makes_it_join_again() -> None:
    bench = Bench()
    bench.join()
    assert not of_type(bench.hear(MemberFailed(1, EPOCH, SECOND, "silent"), THIRD), Rejoin)
    assert of_type(bench.hear(MemberFailed(2, EPOCH, SECOND, "not heard of"), THIRD), Rejoin)


def test_elected_it_leads_on_and_tells_who_is_gone() -> None:
    bench, actions = elected()
    assert of_type(actions, TookOver) == [TookOver(2)]
    assert Count("successions") in actions
    assert bench.trainer.leader == SECOND
    assert {dead.process for _, dead in messages(actions, MemberFailed)} == {LEADER, THIRD}
    assert {to for to, _ in messages(actions, MemberFailed)} >= {A, B, C, SECOND}
    assert {action.process for action in of_type(actions, Forget)} == {LEADER, THIRD}, "nothing is awaited of them"
    assert {to for to, beat in messages(actions, LeaderHeartbeat) if beat.term == 2} == {A, B, C}
    assert not messages(bench.hear(Elect(9, TRAINERS[2]), THIRD), ElectionReport), "a leader gives way to Deposed alone"


def test_whose_report_makes_it_raise_is_put_out_and_it_leads_without_that() -> None:
    def fragile(step: int) -> float:
        if step == 2:
            raise ValueError("what was not expected")
        return 0.1

    bench = Bench()
    bench.trainer.settings = replace(SETTINGS, learning_rate=fragile)
    bench.join()
    bench.lose()
    for who in (*PEERS[1:], TRAINERS[2]):
        bench.hear(lease(who), who.process)
    odd = lease(PEERS[0], opened=replace(OPENED, epoch=Epoch(0, 2)))
    bench.hear(odd, A)
    with pytest.raises(BlamedError) as caught:
        bench.wait(3.0)
    assert (caught.value.process, caught.value.message) == (A, "ElectionReport")
    assert bench.trainer.lead is None
    actions = bench.event(Mishandled(A, "sent ElectionReport, which could not be handled (ValueError)"))
    assert of_type(actions, Forget)[0] == Forget(A)
    assert of_type([*actions, *bench.wait(7.0)], TookOver) == [TookOver(2)]
    assert bench.trainer.lead is not None
    assert A not in bench.trainer.lead.membership.known
    assert [bench.trainer.epoch, bench.trainer.lead.version] == [EPOCH, 0]


def test_what_it_raises_whoever_reports_is_nobodys_fault() -> None:
    def broken(step: int) -> float:
        raise ValueError("what was not expected")

    bench = Bench()
    bench.trainer.settings = replace(SETTINGS, learning_rate=broken)
    bench.join()
    bench.lose()
    for peer in PEERS:
        bench.hear(lease(peer), peer.process)
    with pytest.raises(ValueError, match="what was not expected"):
        bench.wait(3.0)


def test_who_follows_too_late_hears_that_it_was_taken_for_dead() -> None:
    bench, _ = elected()
    late = lease(Member(THIRD, -1))
    [(to, _)] = messages(bench.hear(late, THIRD), Evicted)
    assert to == THIRD
    assert not messages(bench.hear(lease(member("a", 0)), A), Evicted), "it was in time, and says it again"
    assert not messages(bench.hear(replace(late, term=1), THIRD), Evicted), "to another one"


def test_what_it_was_told_before_it_led_is_not_lost() -> None:
    bench = Bench()
    bench.join()
    bench.lose()
    assert Count("messages_ignored", "Done") in bench.hear(Done(microbatch(2), 0, FIRST_ATTEMPT, 2.0, 10), A), (
        "no follower yet"
    )
    for peer in PEERS:
        bench.hear(lease(peer), peer.process)
        bench.hear(Done(microbatch(PEERS.index(peer)), 0, FIRST_ATTEMPT, 2.0, 10), peer.process)
    bench.wait(3.0)
    assert bench.trainer.lead is not None
    assert bench.trainer.lead.step is not None
    assert bench.trainer.lead.step.ledger.done_hops == 3


def test_a_leader_that_is_deposed_joins_again() -> None:
    bench, _ = elected()
    assert not of_type(bench.hear(Deposed(2), A), Rejoin), "of its own term"
    assert not of_type(bench.hear(Deposed(3), A), Rejoin), "one of the six may lie"
    assert of_type(bench.hear(Deposed(3), B), Rejoin)
    assert bench.trainer.phase is TrainerPhase.ENDED
    first = Bench("t0", lead=True)
    assert not of_type(first.hear(Deposed(2), A), Rejoin), "a stranger follows nobody of this run"
    first.hear(Join("peer", "1.0", "run", Member(A, 0)), A)
    assert of_type(first.hear(Deposed(2), A), Rejoin)


def test_a_leader_gives_way_to_the_word_of_another_trainer_alone() -> None:
    bench, _ = elected()
    assert of_type(bench.hear(Deposed(3), THIRD), Rejoin)


def test_of_those_that_tell_of_terms_under_ever_other_names_the_latest_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latest, "ENTRIES_MAX", 3)
    claims = TermClaims()
    names = [f"x{number}" for number in range(5)]
    for term, name in enumerate((*names, "x2"), 1):
        claims.add(ProcessId(name, 1), term)
    claims.add(ProcessId("y", 1), 9)
    assert [claims.believed([name], ()) for name in names] == [0, 0, 6, 0, 5]
