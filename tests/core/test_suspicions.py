"""Accusations: they put nobody out who answers the leader, unless the step stands still; no dispute does for ever."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarmflow.core.membership.members import Membership
from swarmflow.core.membership.suspicions import ALONE_MAX, RECENT_S, Suspicions
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.messages import Evicted, Heartbeat, Join, PeerSummary, Suspect
from swarmflow.core.protocol.types import Plan, ProcessId
from tests.core import test_leader
from tests.core.samples import member, messages, process

A, B, C, D, E = process("a"), process("b"), process("c"), process("d"), process("e")
SETTLE_S = 8.0
CHECK_S = 2.5


class Bench:
    """The accusations among peers of two stages: a and b on the first, c, d and e on the second."""

    def __init__(self, spared: tuple[ProcessId, ...] = ()) -> None:
        self.now = 0.0
        self.lies_max = 0
        self.spared = spared
        self.membership = Membership(Plan(2, 1))
        self.suspicions = Suspicions(SETTLE_S, CHECK_S)
        for name, stage in (("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 1)):
            self.membership.enter(Join("peer", "1.0", "run", member(name, stage)), stage, 0.0)

    def dispute(self, accuser: ProcessId, accused: ProcessId) -> tuple[ProcessId, bool]:
        """Have one accuse another that lives until one of them has to go; return who, and whether it is guilty."""
        for _ in range(10):
            self.suspicions.accuse(accuser, accused, "reset", self.now)
            found = self.suspicions.verdict(self.membership, lambda: self.lies_max, self.now, self.spared.__contains__)
            if found is not None:
                self.suspicions.forget(found.process)
                return found.process, found.guilty
            assert self.wait(1.0) is None
        raise AssertionError("the dispute stands for ever")

    def accuse(self, accuser: ProcessId, accused: ProcessId) -> ProcessId | None:
        self.suspicions.accuse(accuser, accused, "reset", self.now)
        return self.verdict()

    def verdict(self) -> ProcessId | None:
        self.suspicions.answered(self.now)
        found = self.suspicions.verdict(self.membership, lambda: self.lies_max, self.now, self.spared.__contains__)
        return None if found is None else found[0]

    def wait(self, seconds: float, *silent: ProcessId) -> ProcessId | None:
        """Let time pass, in which all others show that they live."""
        self.now += seconds
        for known in self.membership.known.values():
            if known.process not in silent:
                self.suspicions.hear(known.process, self.now)
        return self.verdict()


def test_however_many_accuse_it_an_accused_that_answers_stays() -> None:
    bench = Bench()
    for accuser in (A, B, D):
        assert bench.accuse(accuser, C) is None
    assert bench.wait(CHECK_S) is None


def test_who_is_accused_and_silent_is_put_out_sooner_than_by_silence_alone() -> None:
    bench = Bench()
    bench.accuse(A, C)
    assert bench.suspicions.next_deadline() == CHECK_S
    assert bench.wait(CHECK_S - 0.1, C) is None
    assert bench.wait(0.1, C) == C


def test_an_accused_that_lives_stays() -> None:
    bench = Bench()
    bench.accuse(A, C)
    assert bench.wait(1.0) is None
    assert bench.suspicions.next_deadline() is None
    assert bench.wait(SETTLE_S) is None, "it was a short one"
    assert bench.wait(RECENT_S) is None
    assert bench.accuse(B, C) is None, "what was long ago counts no more"


@pytest.mark.parametrize(("spared", "out"), [((), C), ((A,), C), ((C,), A), ((A, C), C)])
def test_a_dispute_that_lasts_ends_with_one_of_the_two(spared: tuple[ProcessId, ...], out: ProcessId) -> None:
    """Rather with the one whose stage has others."""
    bench = Bench(spared)
    for _ in range(4):
        assert bench.accuse(A, C) is None
        assert bench.wait(2.0) is None
    assert bench.accuse(A, C) == out


def test_who_accuses_many_that_live_is_the_one_that_cannot_be_reached() -> None:
    bench = Bench()
    others = (B, C, D)
    assert len(others) == ALONE_MAX
    for _ in range(4):
        assert [bench.accuse(A, other) for other in others] == [None, None, None]
        assert bench.wait(2.0) is None
    assert bench.accuse(A, C) == A
    bench.suspicions.forget(A)
    assert bench.verdict() is None


def test_who_has_lost_its_credit_is_no_second_accuser() -> None:
    bench = Bench()
    for other in (B, C, D):
        bench.accuse(A, other)
    bench.wait(1.0)
    assert bench.accuse(B, E) is None
    assert bench.accuse(A, E) is None


def test_of_the_same_two_each_goes_in_turn() -> None:
    bench = Bench()
    assert [bench.dispute(A, C) for _ in range(3)] == [(C, False), (A, False), (C, False)]


def test_who_is_in_disputes_with_one_after_the_other_is_guilty() -> None:
    bench = Bench()
    assert [bench.dispute(A, other) for other in (C, D, E)] == [(C, False), (A, True), (A, True)]
    assert bench.dispute(A, C) == (A, True), "long after"
    assert bench.dispute(B, A) == (A, True), "whoever accuses"


def test_two_liars_make_no_member_guilty_where_two_may_lie() -> None:
    bench = Bench()
    bench.lies_max = 2
    assert bench.dispute(A, C) == (C, False)
    assert not bench.dispute(B, C)[1]
    assert not any(bench.dispute(liar, C)[1] for liar in (A, B, A, B))
    assert [bench.dispute(liar, D)[0] for liar in (A, B)] == [A, D]
    assert bench.dispute(A, E) == (A, True)


def test_what_those_without_a_vote_say_makes_no_voter_guilty() -> None:
    bench = Bench()
    for accuser in (A, B):
        known = bench.membership.known[accuser]
        known.member = replace(known.member, votes=False)
    assert not any(bench.dispute(accuser, C)[1] for accuser in (A, B, A, B))


def test_a_dispute_beside_which_steps_are_committed_puts_nobody_out() -> None:
    bench = Bench()
    for _ in range(20):
        assert bench.accuse(A, C) is None
        assert bench.wait(2.0) is None
        bench.suspicions.got_on(bench.now)


def test_an_accusation_does_not_last_since_another_one_before_a_step_was_committed() -> None:
    bench = Bench()
    assert bench.accuse(A, C) is None
    assert bench.wait(SETTLE_S) is None
    bench.suspicions.got_on(bench.now)
    assert bench.wait(1.0) is None
    assert bench.accuse(A, C) is None


def test_whose_messages_more_voters_have_refused_than_may_lie_goes_at_once() -> None:
    bench = Bench()
    bench.lies_max = 2
    for accuser in (A, B, E):
        assert bench.verdict() is None
        bench.suspicions.accuse(accuser, C, "sent what cannot be: an order of no leader", bench.now, refused=True)
    found = bench.suspicions.verdict(bench.membership, lambda: bench.lies_max, bench.now, bench.spared.__contains__)
    assert found == (C, "3 members have refused what it sent (sent what cannot be: an order of no leader)", True)


@pytest.mark.parametrize("votes", [True, False])
def test_two_refusals_put_a_member_out_at_once_only_if_those_who_refused_have_votes(votes: bool) -> None:
    bench = test_leader.Bench()
    bench.serve(A, B, C)
    actions: list[Action] = []
    for accuser in (A, B):
        known = bench.leader.membership.known[accuser]
        known.member = replace(known.member, votes=votes)
        actions += bench.hear(accuser, Suspect(C, "sent what cannot be", refused=True))
    assert [to for to, _ in messages(actions, Evicted)] == ([C] if votes else [])


def test_refusals_suffice_once_as_many_voters_have_left_that_fewer_may_lie() -> None:
    bench = Bench()
    bench.lies_max = 2
    for accuser in (A, B):
        bench.suspicions.accuse(accuser, C, "sent what cannot be", bench.now, refused=True)
    assert bench.verdict() is None
    bench.lies_max = 1
    bench.suspicions.forget(D)
    assert bench.verdict() == C


def calls_within(act: Callable[[], object]) -> int:
    """Return how many functions are called and left while this runs."""
    calls = 0

    def count(*of: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def test_a_message_costs_as_much_with_many_accusations_as_with_few() -> None:
    crowd = [process(f"p{number}") for number in range(40)]
    calls = set()
    for accusers in (crowd[:2], crowd[:30]):
        bench = test_leader.Bench()
        bench.serve(*crowd)
        for accuser, accused in product(accusers, crowd):
            if accuser != accused:
                bench.hear(accuser, Suspect(accused, "reset"))
        bench.now = 0.5
        for each in crowd[:20]:  # of the others nothing has come yet
            bench.hear(each, Heartbeat())
            bench.hear(each, PeerSummary())
        for message in (Heartbeat(), PeerSummary(), Suspect(crowd[1], "reset")):
            calls.add((type(message), calls_within(partial(bench.hear, crowd[0], message))))
    assert len(calls) == 3


@given(st.floats(0.0, 1e9))
@example(6.2964790047645325)  # plus 2.5 and minus 2.5 is less
def test_who_is_silent_is_given_up_at_the_deadline_and_not_a_rounding_error_later(said_s: float) -> None:
    bench = Bench()
    bench.now = said_s
    assert bench.accuse(A, C) is None
    due_s = bench.suspicions.next_deadline()
    assert due_s is not None
    bench.now = due_s
    assert bench.verdict() == C
