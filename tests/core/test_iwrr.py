"""The router: shares in proportion to speed, bans until announced again, newcomers that are not flooded."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.iwrr import Iwrr
from tests.core.measuring import responded
from tests.core.samples import process

A, B, C = process("a"), process("b"), process("c")


def given_out(router: Iwrr, seconds: dict[ProcessId, float], count: int) -> Counter[ProcessId]:
    """Who gets how many of `count` microbatches, when each peer always takes its seconds."""
    shares: Counter[ProcessId] = Counter()
    for _ in range(count):
        choice = router.choose()
        assert choice is not None
        shares[choice.process] += 1
        responded(router, choice.process, seconds[choice.process])
    return shares


def test_a_device_twice_as_fast_gets_twice_as_many() -> None:
    router = Iwrr()
    router.begin_epoch([A, B])
    given_out(router, {A: 1.0, B: 2.0}, 10)
    assert given_out(router, {A: 1.0, B: 2.0}, 300) == {A: 200, B: 100}


@settings(max_examples=40)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_shares_are_in_proportion_to_speed(speeds: list[int]) -> None:
    peers = {process(f"p{number}"): 1.0 / speed for number, speed in enumerate(speeds)}
    router = Iwrr()
    router.begin_epoch(peers)
    given_out(router, peers, 2 * len(peers))  # each one is measured
    shares = given_out(router, peers, 600)
    for peer, speed in zip(peers, speeds, strict=True):
        assert abs(shares[peer] - 600 * Fraction(speed, sum(speeds))) <= len(peers) + 20 / min(speeds)


def test_smoothing_is_that_of_the_paper() -> None:
    router = Iwrr()
    router.begin_epoch([A])
    responded(router, A, 2.0)  # the first one replaces the prior
    responded(router, A, 1.0)
    assert router.seconds(A) == pytest.approx(0.1 * 1.0 + 0.9 * 2.0)


def test_the_banned_are_not_chosen_until_announced_again() -> None:
    router = Iwrr()
    router.begin_epoch([A, B])
    router.remove_peer(A)
    assert given_out(router, {A: 1.0, B: 1.0}, 20) == {B: 20}
    responded(router, A, 0.001)
    assert router.seconds(A) is None
    router.begin_epoch([A, B])
    assert given_out(router, {A: 1.0, B: 1.0}, 100)[A] >= 40


def test_nobody_is_chosen_when_all_are_excluded_or_gone() -> None:
    router = Iwrr()
    assert router.choose() is None
    router.begin_epoch([A, B])
    choice = router.choose(exclude=[A])
    assert choice is not None
    assert choice.process == B
    assert router.choose(exclude=[A, B]) is None
    router.begin_epoch([])
    assert router.choose() is None


def test_a_newcomer_is_not_flooded() -> None:
    seconds = {A: 1.0, B: 1.0, C: 1.0}
    router = Iwrr()
    router.begin_epoch([A, B])
    given_out(router, seconds, 10_000)
    router.begin_epoch([A, B, C])
    assert 8 <= given_out(router, seconds, 30)[C] <= 12


def test_announcing_again_keeps_what_was_measured() -> None:
    router = Iwrr()
    router.begin_epoch([A, B])
    given_out(router, {A: 1.0, B: 3.0}, 40)
    router.begin_epoch([A, B])
    assert router.seconds(B) == pytest.approx(3.0)
    assert given_out(router, {A: 1.0, B: 3.0}, 400)[A] == pytest.approx(300, abs=2)
