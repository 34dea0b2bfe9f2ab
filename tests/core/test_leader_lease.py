"""Whom a process follows: when it takes its leader for lost, and whom it may follow instead."""

from __future__ import annotations

import pytest

from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.election.leader_lease import LeaderLease, LeaseState
from swarmflow.core.protocol.messages import MemberFailed, OpenStep
from swarmflow.core.protocol.types import ProcessId, Roster
from tests.core.samples import EPOCH, LINEAGE, member, process

ME, LEADER, NEXT, STRANGER = process("me"), process("t0"), process("t1"), process("x")
ROSTER = Roster(((member("me"),),), (member("t0", -1), member("t1", -1)))


def ticked(until_s: int) -> LeaderLease:
    """A process that has heard its leader at 0 s, and looks after it each second until then."""
    lease = LeaderLease(LEADER)
    for second in range(until_s + 1):
        lease.tick(float(second))
    return lease


def test_silence_is_doubted_first_and_a_loss_later() -> None:
    assert not ticked(3).doubted(3.0)
    assert ticked(4).doubted(4.0)
    assert ticked(10).lost_s is None
    assert ticked(11).lost_s == 11.0


def test_before_it_has_looked_a_process_doubts_nobody() -> None:
    assert not LeaderLease(LEADER).doubted(1000.0)


def test_a_broken_connection_is_a_loss_at_once_and_a_message_takes_it_back() -> None:
    lease = ticked(1)
    lease.lose(1.5)
    assert (lease.lost_s, lease.doubted(1.5)) == (1.5, True)
    assert lease.state is LeaseState.LOST
    lease.renew(1.6)
    assert (lease.lost_s, lease.doubted(1.6), lease.lost) == (None, False, False)


def test_patience_counts_from_the_first_loss() -> None:
    lease = ticked(1)
    lease.lose(1.0)
    lease.lose(20.0)
    assert not lease.expired(26.0)
    assert lease.expired(26.1)


def test_who_slept_itself_does_not_blame_the_leader() -> None:
    lease = ticked(2)
    lease.tick(60.0)
    assert (lease.lost_s, lease.doubted(60.0)) == (None, False)
    for second in range(61, 72):
        lease.tick(float(second))
    assert lease.lost_s == 71.0, "it is lost if it stays silent to one who is awake"


def test_a_leader_that_was_lost_before_the_sleep_stays_lost() -> None:
    lease = ticked(2)
    lease.lose(2.0)
    lease.tick(60.0)
    assert lease.lost_s == 2.0
    assert lease.expired(60.0)


def test_a_promise_is_to_a_leader_and_its_term() -> None:
    lease = ticked(11)
    lease.follow(NEXT, 7, 11.0)
    assert (lease.leader, lease.term, lease.lost_s) == (NEXT, 7, None)
    assert not lease.doubted(13.0)


@pytest.mark.parametrize(
    ("sender", "dead", "term", "expected"),
    [(NEXT, ME, 3, True), (NEXT, STRANGER, 3, False), (NEXT, ME, 2, False), (STRANGER, ME, 3, False)],
)
def test_who_is_passed_over_by_a_later_leader_learns_it(
    sender: ProcessId, dead: ProcessId, term: int, expected: bool
) -> None:
    lease = LeaderLease(LEADER, term=2)
    gone = MemberFailed(term, EPOCH, dead, "not heard of")
    assert lease.passed_over(ME, sender, gone, EpochView(OpenStep(2, EPOCH, ROSTER, LINEAGE))) is expected
    assert not lease.passed_over(ME, sender, gone, None), "who is in no epoch knows no trainers"
