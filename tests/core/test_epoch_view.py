"""What a process has heard of the epoch at hand, and tells to another leader."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.protocol.messages import Commit, Done, Join, OpenStep, Prepare, StepResult, Tally
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Group, Roster
from tests.core.samples import EPOCH, LINEAGE, member, microbatch, process

A, B, N, T0, T1 = process("a"), process("b"), process("n"), process("t0"), process("t1")
ROSTER = Roster(((member("a"), member("b")),), (member("t0", -1), member("t1", -1)))
OPENED = OpenStep(3, EPOCH, ROSTER, LINEAGE)
TALLY = Tally(2.0, 10, 1)
RESULTS = (("stage-0", 1.0, "digest"),)
COMMIT = Commit(3, EPOCH, 1, 0.1, 0.5, StepResult(3, EPOCH, 2.0, 10, 1.0, 1.0, 0.5, 4, (3,), 1))
PREPARE = Prepare(3, EPOCH, 1, ((0, FIRST_ATTEMPT),), (Group("stage-0", (A, B, N), ballot=1),), TALLY, (member("n"),))


def reduced() -> EpochView:
    """Of one that has heard of a death and a suspicion, and has reduced the first ballot."""
    epoch_view = EpochView(OPENED)
    epoch_view.suspects[B] = None
    epoch_view.died(T1)
    epoch_view.prepare(PREPARE)
    epoch_view.results = RESULTS
    return epoch_view


def test_all_that_was_heard_is_told() -> None:
    epoch_view = reduced()
    epoch_view.commit, epoch_view.applied = COMMIT, True
    join, done = Join("peer", "1.0", "run", member("a")), (Done(microbatch(0), 0, FIRST_ATTEMPT, 2.0, 10),)
    report = epoch_view.report(4, join, member("a"), ready=True, version=1, draining=True, done=done)
    assert (report.term, report.join, report.member) == (4, join, member("a"))
    assert (report.ready, report.version, report.draining, report.done) == (True, 1, True, done)
    assert (report.opened, report.gone, report.suspects) == (OPENED, (T1,), (B,))
    assert (report.newcomers, report.ballot, report.tally) == ((member("n"),), 1, TALLY)
    assert (report.results, report.commit, report.applied) == (RESULTS, COMMIT, True)
    feeder = epoch_view.report(
        4, join, member("t1", -1), ready=True, version=0, draining=False, indices=(1, 3), reassignment=2
    )
    assert (feeder.indices, feeder.reassignment) == ((1, 3), 2)


def test_a_death_revokes_the_ballot_but_not_its_number() -> None:
    epoch_view = reduced()
    epoch_view.died(B)
    assert (list(epoch_view.gone), list(epoch_view.suspects)) == ([T1, B], [])
    assert (epoch_view.ballot, epoch_view.tally, epoch_view.results) == (1, None, ())
    assert list(epoch_view.newcomers) == [N], "who came in with a ballot stays"


def test_a_higher_ballot_forgets_what_the_lower_one_gave() -> None:
    epoch_view = reduced()
    epoch_view.prepare(replace(PREPARE, ballot=2, newcomers=()))
    assert (epoch_view.ballot, epoch_view.tally, epoch_view.results) == (2, TALLY, ())
    assert list(epoch_view.newcomers) == [N]


def test_trainers_stand_in_the_order_of_the_roster_unless_they_are_dead() -> None:
    epoch_view = EpochView(OPENED)
    assert epoch_view.trainers() == [T0, T1]
    epoch_view.died(T0)
    assert epoch_view.trainers() == [T1]
    assert epoch_view.epoch == EPOCH
