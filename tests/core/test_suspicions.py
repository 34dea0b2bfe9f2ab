"""Accusations: one accuser puts nobody out; two do, or the leader's own silence; and no dispute stands for ever."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarmflow.core.membership.members import Membership
from swarmflow.core.membership.suspicions import ALONE_MAX, RECENT_S, Suspicions
from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.types import Plan, ProcessId
from tests.core.samples import member, process

A, B, C, D = process("a"), process("b"), process("c"), process("d")
SETTLE_S = 8.0
CHECK_S = 2.5


class Bench:
    """The accusations among peers of two stages: a and b on the first, c, d and e on the second."""

    def __init__(self, spared: tuple[ProcessId, ...] = ()) -> None:
        self.now = 0.0
        self.spared = spared
        self.membership = Membership(Plan(2, 1))
        self.suspicions = Suspicions(SETTLE_S, CHECK_S)
        for name, stage in (("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 1)):
            self.membership.enter(Join("peer", "1.0", "run", member(name, stage)), stage, 0.0)

    def accuse(self, accuser: ProcessId, accused: ProcessId) -> ProcessId | None:
        self.suspicions.accuse(accuser, accused, "reset", self.now)
        return self.verdict()

    def verdict(self) -> ProcessId | None:
        self.suspicions.answered(self.membership, self.now)
        found = self.suspicions.verdict(self.membership, self.now, self.spared.__contains__)
        return None if found is None else found[0]

    def wait(self, seconds: float, *silent: ProcessId) -> ProcessId | None:
        """Let time pass, in which all others show that they live."""
        self.now += seconds
        for known in self.membership.known.values():
            if known.process not in silent:
                known.last_seen_s = self.now
        return self.verdict()


def test_two_accusers_are_enough_and_one_is_not() -> None:
    bench = Bench()
    assert bench.accuse(A, C) is None
    assert bench.accuse(A, C) is None, "the same once more"
    assert bench.accuse(B, C) == C


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
    assert bench.accuse(B, process("e")) is None
    assert bench.accuse(A, process("e")) is None


@given(st.floats(0.0, 1e9))
@example(6.2964790047645325)  # plus 2.5 and minus 2.5 is less
def test_who_is_silent_is_given_up_at_the_deadline_and_not_a_rounding_error_later(said_s: float) -> None:
    bench = Bench()
    bench.now = said_s
    for known in bench.membership.known.values():
        known.last_seen_s = said_s
    assert bench.accuse(A, C) is None
    due_s = bench.suspicions.next_deadline()
    assert due_s is not None
    bench.now = due_s
    assert bench.verdict() == C
