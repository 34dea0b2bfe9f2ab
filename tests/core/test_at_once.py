"""Where nothing has to happen between two steps, the next one is opened with the commit of the one before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.protocol.actions import Action, Apply, Rejoin, Reset
from swarmflow.core.protocol.events import Applied, Lost, Sealed, Tick
from swarmflow.core.protocol.messages import (
    Commit,
    Committed,
    Drain,
    Elect,
    ElectionReport,
    Evicted,
    Heartbeat,
    MemberFailed,
    OpenStep,
    RosterDelta,
)
from swarmflow.core.protocol.proofs import with_proofs, without_unproven
from swarmflow.core.protocol.types import Epoch, Roster
from swarmflow.simulator.proofs import is_proven, sign
from tests.core import taken_over
from tests.core.samples import EPOCH, LINEAGE, commits, messages, of_type
from tests.core.taken_over import COMMIT, OPENED, PEERS, TRAINERS, reduced, report
from tests.core.test_leader import ME as LEADING
from tests.core.test_leader import SETTINGS, A, B, Bench
from tests.core.test_peer import LEADER, MATE, RESULT, ROSTER
from tests.core.test_peer import Bench as PeerBench

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


def test_who_makes_the_update_of_the_step_before_owes_that_and_is_not_behind() -> None:
    bench = Bench()
    bench.serve(A, B)
    bench.commit()
    bench.committing()

    def pass_time(until_s: float) -> list[Action]:
        actions: list[Action] = []
        while bench.now < until_s:
            bench.now += 1.0
            actions += bench.hear(A, Heartbeat(version=2, epoch=Epoch(0, 2)))
            actions += bench.hear(B, Heartbeat(version=1, epoch=Epoch(0, 1)))
            actions += bench.leader.handle(Tick(), bench.now)
        return actions

    assert not messages(pass_time(2 * bench.timeouts.stall_s), Evicted), "an update may take its time"
    [(to, evicted), *_] = messages(pass_time(10 * bench.timeouts.stall_s), Evicted)
    assert to == B
    assert "it does not apply the update" in evicted.reason


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


def test_a_commit_that_a_report_quotes_with_its_step_is_what_a_trainer_has_signed() -> None:
    told = with_proofs(report(PEERS[0], replace(OPENED, epoch=OPENED.epoch.following, commit=COMMIT)), sign)
    assert without_unproven(told, is_proven) == told
    assert isinstance(told, ElectionReport)
    forged = replace(told, opened=replace(told.opened, commit=replace(COMMIT, scale=1.0)))
    assert without_unproven(forged, is_proven) is None
