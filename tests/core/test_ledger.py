"""The ledger: complete when each hop has exactly one living holder."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.commit.ledger import Ledger
from swarmflow.core.protocol.messages import Done, HopHandover
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt, ProcessId
from tests.core.samples import REPAIR, microbatch, process

A, B = process("a"), process("b")


def done(stage: int, index: int, attempt: Attempt = FIRST_ATTEMPT, loss_sum: float = 0.0, tokens: int = 0) -> Done:
    return Done(microbatch(index), stage, attempt, loss_sum, tokens)


def test_complete_when_each_hop_has_a_holder() -> None:
    ledger = Ledger(stages=2, microbatches=2)
    for stage, index in ((0, 0), (1, 0), (0, 1)):
        ledger.done(A, done(stage, index))
        assert not ledger.complete
    ledger.done(B, done(1, 1, attempt=REPAIR))
    assert ledger.complete
    assert sorted(ledger.entries().get(A, ())) == [(0, FIRST_ATTEMPT), (0, FIRST_ATTEMPT), (1, FIRST_ATTEMPT)]
    assert ledger.entries().get(B, ()) == ((1, REPAIR),)
    assert ledger.manifest() == (
        (0, 0, A, FIRST_ATTEMPT),
        (0, 1, A, FIRST_ATTEMPT),
        (1, 0, A, FIRST_ATTEMPT),
        (1, 1, B, REPAIR),
    )
    assert ledger.retries == 1


@pytest.mark.parametrize("first", [A, B])
def test_of_two_that_hold_a_hop_the_later_attempt_counts_and_the_other_is_an_orphan(first: ProcessId) -> None:
    ledger = Ledger(1, 1)
    attempts = {A: FIRST_ATTEMPT, B: REPAIR}
    for holder in (first, first, *(other for other in (A, B) if other != first)):
        ledger.done(holder, done(0, 0, attempts[holder]))
    assert ledger.manifest() == ((0, 0, B, REPAIR),)
    assert ledger.entries().get(A, ()) == ()


def test_who_has_passed_a_hop_on_and_does_not_report_it_is_known_from_the_next_stage() -> None:
    ledger = Ledger(2, 1)
    assert not ledger.was_taken(0)
    ledger.done(B, replace(done(1, 0), handovers=(HopHandover(A, 1, FIRST_ATTEMPT), HopHandover(B, 0, FIRST_ATTEMPT))))
    assert ledger.was_taken(0)
    assert ledger.unreported() == {}, "something was entered since the last look"
    assert ledger.unreported() == {A: B}
    ledger.gone(A)
    assert ledger.unreported() == {}
    assert not ledger.was_taken(0), "its trainer has to send it again"


def test_who_has_given_a_gradient_back_and_does_not_report_it_is_known_from_the_stage_before() -> None:
    ledger = Ledger(2, 1)
    ledger.done(A, replace(done(0, 0), successor=B))
    assert [ledger.unreported(), ledger.unreported()] == [{}, {B: A}]
    ledger.done(B, done(1, 0))
    assert [ledger.unreported(), ledger.unreported()] == [{}, {}]


def test_an_orphan_is_of_use_until_the_manifest_is_told() -> None:
    ledger = Ledger(1, 1)
    ledger.done(A, done(0, 0))
    ledger.done(B, done(0, 0, attempt=REPAIR))
    assert ledger.gone(B) == (), "another one has accumulated it"
    assert ledger.manifest() == ((0, 0, A, FIRST_ATTEMPT),)
    ledger.done(B, done(0, 0, attempt=Attempt(repair=2)))
    ledger.settle()
    assert ledger.gone(B) == ((0, 0),), "what was an orphan is taken away by now"
    assert ledger.missing() == ((0, 0),)


def test_a_death_opens_its_hops_and_their_losses_are_not_counted_twice() -> None:
    ledger = Ledger(1, 2)
    ledger.done(A, done(0, 0, loss_sum=6.0, tokens=3))
    ledger.done(B, done(0, 1, loss_sum=4.0, tokens=2))
    assert (ledger.tokens, ledger.loss) == (5, 2.0)
    assert ledger.gone(A) == ((0, 0),)
    assert not ledger.complete
    ledger.done(B, done(0, 0, attempt=REPAIR, loss_sum=6.0, tokens=3))
    assert ledger.complete
    assert (ledger.tokens, ledger.loss) == (5, 2.0)


def test_without_a_token_there_is_no_loss() -> None:
    assert math.isnan(Ledger(1, 1).loss)


@settings(max_examples=50)
@given(st.permutations([float(number) / 7 for number in range(6)]), st.randoms(use_true_random=False))
def test_the_loss_does_not_depend_on_the_order_of_arrival(losses: list[float], random: Random) -> None:
    in_order, shuffled = Ledger(1, 6), Ledger(1, 6)
    order = list(range(6))
    random.shuffle(order)
    for index in range(6):
        in_order.done(A, done(0, index, loss_sum=losses[index], tokens=1))
    for index in order:
        shuffled.done(A, done(0, index, loss_sum=losses[index], tokens=1))
    assert in_order.loss == shuffled.loss
