"""Where nothing has to happen between two steps, the next one is opened with the commit of the one before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.election.candidacy import Candidacy, takeover_of
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.machines.leader import Leader
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.protocol.actions import Action, Apply, Forget, Rejoin, Reset
from swarmflow.core.protocol.events import Applied, Lost, Sealed, Tick
from swarmflow.core.protocol.messages import (
    Commit,
    Committed,
    Done,
    Drain,
    Elect,
    ElectionReport,
    Evicted,
    Heartbeat,
    MemberFailed,
    NotFinite,
    OpenStep,
    Prepared,
    RosterDelta,
    StateRoot,
    StepResult,
    VersionCertified,
)
from swarmflow.core.protocol.messages.checks import checks_of
from swarmflow.core.protocol.proofs import with_proofs, without_unproven
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Microbatch, Plan, ProcessId, Roster
from swarmflow.simulator.proofs import is_proven, sign
from tests.core import taken_over
from tests.core.peer_bench import LEADER, MATE, RESULT, ROSTER
from tests.core.peer_bench import Bench as PeerBench
from tests.core.samples import EPOCH, LINEAGE, commits, member, messages, of_type
from tests.core.taken_over import COMMIT, OPENED, PEERS, TRAINERS, reduced, report
from tests.core.test_leader import ME as LEADING
from tests.core.test_leader import SETTINGS, A, B, Bench

DECIDED = Commit(1, EPOCH, 1, 0.5, 0.1, RESULT)
NEXT = EPOCH.following
OPENING = OpenStep(1, NEXT, ROSTER, LINEAGE, commit=DECIDED)
RESULTS = (("stage-0", 1.0, "x"),)


def sealed(roster: Roster = ROSTER) -> PeerBench:
    """A peer whose gradients of the first step are reduced."""
    bench = PeerBench()
    bench.serve(roster)
    bench.work()
    bench.prepare()
    bench.event(Sealed(EPOCH, 1, RESULTS))
    return bench


# --- the leader -------------------------------------------------------------------------------------------------------


def test_the_next_step_comes_with_the_commit_to_all_its_members() -> None:
    bench = Bench()
    bench.serve(A, B)
    bench.commit()  # with A alone
    actions = bench.committing()
    assert not messages(actions, Commit), "once is enough"
    opened = dict(messages(actions, RosterDelta))
    assert opened.keys() == {A, B, LEADING.process}
    assert {message.epoch for message in opened.values()} == {Epoch(0, 2)}
    assert {(to, commit.epoch) for to, commit in commits(actions)} == {(A, Epoch(0, 1)), (B, Epoch(0, 1))}
    assert bench.leader.version == 2
    assert not bench.hear(A, Committed(Epoch(0, 1), 2)), "nobody has waited for it"


@pytest.mark.parametrize(
    "settings", [replace(SETTINGS, validate_every=1), replace(SETTINGS, checkpoint_every=1), replace(SETTINGS, steps=1)]
)
def test_it_waits_for_all_updates_where_their_version_is_used_first(settings: LeaderSettings) -> None:
    bench = Bench(settings)
    bench.serve(A)
    actions = bench.committing()
    assert [to for to, _ in messages(actions, Commit)] == [A]
    assert not messages(actions, OpenStep)
    assert bench.leader.version == 0


def test_it_waits_for_all_updates_where_somebody_wants_to_leave() -> None:
    bench = Bench()
    bench.serve(A, B)
    bench.commit()
    bench.hear(A, Drain())
    actions = bench.committing()
    assert [to for to, _ in messages(actions, Commit)] == [A, B]
    assert not messages(actions, RosterDelta)


def test_a_step_that_starts_over_still_tells_of_the_commit_that_came_with_it() -> None:
    bench = Bench()
    bench.serve(A, B)
    bench.commit()
    [(_, first), _] = commits(bench.committing())
    again = bench.leader.handle(Lost(B, "killed"), 0.0)
    assert bench.leader.step is not None
    bench.leader.step.void("a test")
    again = bench.leader.handle(Tick(), 0.0)
    assert commits(again) == [(A, first)], "it may make that update still"


def updating() -> tuple[Bench, dict[ProcessId, tuple[int, Epoch]]]:
    """A leader whose step was opened at once, and of A and B the version and epoch: B makes the update still."""
    bench = Bench()
    bench.serve(A, B)
    bench.commit()
    bench.committing()
    return bench, {A: (2, Epoch(0, 2)), B: (1, Epoch(0, 1))}


def pass_time(bench: Bench, until_s: float, epochs: dict[ProcessId, tuple[int, Epoch]]) -> list[Action]:
    """Let time pass with a heartbeat of each in a second."""
    actions: list[Action] = []
    while bench.now < until_s:
        bench.now += 1.0
        for peer, (version, epoch) in epochs.items():
            actions += bench.hear(peer, Heartbeat(version=version, epoch=epoch))
        actions += bench.leader.handle(Tick(), bench.now)
    return actions


def test_who_makes_the_update_of_the_step_before_owes_that_and_is_not_behind() -> None:
    bench, epochs = updating()
    assert not messages(pass_time(bench, 2 * bench.timeouts.stall_s, epochs), Evicted), "an update may take its time"
    [(to, evicted), *_] = messages(pass_time(bench, 10 * bench.timeouts.stall_s, epochs), Evicted)
    assert to == B
    assert "it does not apply the update" in evicted.reason


def test_its_patience_is_the_same_where_only_the_ballot_waits_for_that_update() -> None:
    bench, epochs = updating()
    step = bench.leader.step
    assert step is not None
    bench.hear(A, Done(Microbatch(step.epoch, 0), 0, FIRST_ATTEMPT, 2.0, 1))
    bench.hear(A, Prepared(step.epoch, step.ballot.number, RESULTS))
    assert not messages(pass_time(bench, 6 * bench.timeouts.stall_s, epochs), Evicted)
    [(to, evicted), *_] = messages(pass_time(bench, 10 * bench.timeouts.stall_s, epochs), Evicted)
    assert to == B
    assert "it does not apply the update" in evicted.reason


def test_who_makes_that_update_when_the_step_starts_over_still_owes_it() -> None:
    bench, epochs = updating()
    assert bench.leader.step is not None
    bench.leader.step.void("a test")
    again = bench.leader.handle(Tick(), bench.now)
    assert {commit.epoch for _, commit in commits(again)} == {Epoch(0, 1)}
    assert not messages(pass_time(bench, 2 * bench.timeouts.stall_s, {**epochs, A: (2, bench.leader.epoch)}), Evicted)
    evicted = messages(bench.hear(B, NotFinite(Epoch(0, 1), -1, "update")), Evicted)
    assert [to for to, _ in evicted] == [B], "and what it finds in it counts"


def test_a_stages_only_peer_that_has_not_heard_of_the_step_is_told_again() -> None:
    bench = Bench()
    bench.serve(A)
    bench.committing()
    actions = pass_time(bench, 10 * bench.timeouts.stall_s, {A: (0, Epoch(0, 0))})
    assert not messages(actions, Evicted)
    assert {opened.epoch for _, opened in messages(actions, OpenStep)} == {Epoch(0, 1)}


def test_roots_that_come_late_are_awaited_before_the_version_after_is_over() -> None:
    bench = Bench(replace(SETTINGS, steps=100))
    bench.serve(A, B)
    bench.commit()
    while not commits(bench.committing())[0][1].hashed:
        pass
    hashed = bench.leader.version
    assert messages(bench.committing(), Commit), "with which no step is opened"
    assert not bench.hear(A, StateRoot(0, hashed, "root"))
    assert messages(bench.hear(B, StateRoot(0, hashed, "root")), VersionCertified)


def test_nothing_is_granted_that_no_donor_has_yet() -> None:
    bench = Bench()
    bench.serve(A)
    bench.join(B)
    assert [to for to, _ in messages(bench.committing(), Commit)] == [A]
    assert bench.leader.version == 0


# --- a peer -----------------------------------------------------------------------------------------------------------


def test_a_peer_makes_the_update_before_it_begins_the_step_that_came_with_it() -> None:
    bench = sealed()
    actions = bench.hear(OPENING)
    assert of_type(actions, Apply) == [Apply(EPOCH, 0.5, 0.1)]
    assert not of_type(actions, Reset)
    assert bench.peer.epoch == EPOCH
    assert not bench.hear(MemberFailed(1, NEXT, MATE, "killed")), "that is about a step which it has not begun"
    actions = bench.event(Applied(EPOCH))
    assert messages(actions, Committed) == [(LEADER, Committed(EPOCH, 1))]
    assert of_type(actions, Reset)
    assert bench.peer.epoch == NEXT
    assert bench.peer.epoch_view is not None
    assert list(bench.peer.epoch_view.gone) == [MATE], "and then what came after it"


def test_a_commit_that_it_has_heard_is_made_once() -> None:
    bench = sealed()
    assert of_type(bench.hear(DECIDED), Apply)
    assert not bench.hear(OPENING)
    assert of_type(bench.event(Applied(EPOCH)), Reset)
    assert bench.peer.version == 1


def test_a_commit_of_a_ballot_that_it_has_not_reduced_has_it_join_again() -> None:
    bench = PeerBench()
    bench.serve()
    assert of_type(bench.hear(OPENING), Rejoin)


def test_orders_of_the_present_step_do_not_wait_for_its_update() -> None:
    bench = sealed()
    bench.hear(DECIDED)
    assert of_type(bench.hear(MemberFailed(1, EPOCH, MATE, "killed")), Forget) == [Forget(MATE)]
    assert bench.hear(OPENING) == []
    assert bench.hear(MemberFailed(1, EPOCH, LEADER, "killed")) == [], "what comes after the step waits with it"


def test_orders_that_waited_are_no_sign_of_life_of_their_leader() -> None:
    roster = Roster(ROSTER.stages, TRAINERS)
    bench = sealed(roster)
    bench.hear(replace(OPENING, roster=roster))
    bench.event(Lost(LEADER, "killed"))
    assert of_type(bench.event(Applied(EPOCH)), Reset)
    assert bench.peer.lease.lost
    assert messages(bench.hear(Elect(2, TRAINERS[1]), sender=TRAINERS[1].process), ElectionReport)


def test_what_a_former_leader_has_ordered_is_left_to_the_one_elected_since() -> None:
    bench = sealed(Roster(ROSTER.stages, TRAINERS))
    bench.hear(OPENING)
    bench.event(Lost(LEADER, "killed"))
    bench.hear(Elect(2, TRAINERS[1]), sender=TRAINERS[1].process)
    assert not of_type(bench.event(Applied(EPOCH)), Reset)
    again = replace(OPENING, term=2)
    assert of_type(bench.hear(again, sender=TRAINERS[1].process), Reset)
    assert bench.peer.epoch == NEXT


# --- another leader ---------------------------------------------------------------------------------------------------


def test_who_has_not_heard_of_the_step_is_told_of_the_commit_with_it_by_the_next_leader() -> None:
    opened = replace(OPENED, epoch=OPENED.epoch.following, commit=COMMIT)
    behind, *others = [reduced(told) for told in taken_over.peers()]
    ahead = [replace(report(told.member, opened), version=opened.epoch.step) for told in others]
    bench = taken_over.Bench([behind, *ahead], own=report(TRAINERS[1], opened))
    assert bench.leader.epoch == opened.epoch
    [(to, again)] = messages(bench.began, OpenStep)
    assert (to, again.epoch, again.commit) == (PEERS[0].process, opened.epoch, COMMIT)
    assert bench.leader.membership.known[PEERS[0].process].version == opened.epoch.step, "it stays in what follows"


def test_what_the_former_leader_may_not_have_told_of_the_step_before_the_trainers_hear_again() -> None:
    opened = replace(OPENED, epoch=OPENED.epoch.following, commit=COMMIT)
    ahead = [replace(report(told.member, opened), version=opened.epoch.step) for told in taken_over.peers()]
    bench = taken_over.Bench(ahead, own=reduced(report(TRAINERS[1])))
    assert [result.epoch for _, result in messages(bench.began, StepResult)] == [COMMIT.epoch]


def test_a_stage_of_which_the_next_leader_hears_only_that_it_can_make_the_update_is_not_lost() -> None:
    """The members of the step are known in parts, since those who knew all of them are gone."""
    peers = [replace(member(name, stage), votes=True) for stage, name in enumerate("abcd")]
    new, me = replace(member("n", 0), votes=True), replace(member("t1", -1), votes=True)
    stages = tuple((peer,) for peer in peers)
    opened = replace(OPENED, roster=Roster(stages, (replace(member("t0", -1), votes=True), me)))
    roster = Roster(((peers[0], new), *stages[1:]), opened.roster.trainers)
    following = replace(opened, epoch=opened.epoch.following, roster=roster, commit=COMMIT)
    told = [reduced(report(peer, opened)) for peer in peers if peer.stage != 1]
    told = [replace(each, results=((f"stage-{each.member.stage}", 1.0, "x"),), newcomers=(new,)) for each in told]
    told += [replace(report(who, following.seen_from(who.stage, ())), version=6) for who in (new, peers[1])]
    tried = Candidacy(me, 4, EpochView(opened), 100.0)
    for each in (replace(reduced(report(TRAINERS[1], opened)), results=(), member=me), *told):
        tried.report(each.member.process, each)
    assert tried.elected(110.0)
    taken = takeover_of(tried, Plan(4, 3), taken_over.SETTINGS.learning_rate, 0.0, 100.0)
    leader = Leader(me, Plan(4, 3), replace(taken_over.SETTINGS, steps=20), 4, taken.step.epoch.step, 4)
    actions = leader.take_over(taken, 100.0)
    assert leader.version == 6
    assert peers[3].process in {to for to, _ in commits(actions)}


def test_a_commit_that_a_report_quotes_with_its_step_is_what_a_trainer_has_signed() -> None:
    checks = checks_of(taken_over.PLAN)
    told = with_proofs(report(PEERS[0], replace(OPENED, epoch=OPENED.epoch.following, commit=COMMIT)), sign)
    assert without_unproven(told, is_proven, checks) == told
    assert isinstance(told, ElectionReport)
    forged = replace(told, opened=replace(told.opened, commit=replace(COMMIT, scale=1.0)))
    assert without_unproven(forged, is_proven, checks) is None
