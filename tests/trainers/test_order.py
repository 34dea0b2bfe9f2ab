"""The data rule's arithmetic, and the permutation against its description in the documentation."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.order import SequenceOrder, permuted


def test_sequential_order_is_the_rule() -> None:
    order = SequenceOrder(sequences=7, microbatches=3, microbatch_sequences=2)
    for step in range(10):
        for index in range(3):
            expected = [((step * 3 + index) * 2 + b) % 7 for b in range(2)]
            assert order.of_microbatch(step, index) == expected


def test_a_microbatch_larger_than_the_corpus_wraps() -> None:
    assert SequenceOrder(sequences=2, microbatches=1, microbatch_sequences=5).of_microbatch(1, 0) == [1, 0, 1, 0, 1]


def test_an_epoch_of_the_shuffled_order_holds_each_sequence_once_and_repeats() -> None:
    order = SequenceOrder(sequences=12, microbatches=3, microbatch_sequences=2, seed=5)
    epochs = [
        [sequence for step in (start, start + 1) for index in range(3) for sequence in order.of_microbatch(step, index)]
        for start in (0, 2)
    ]
    assert sorted(epochs[0]) == list(range(12))
    assert epochs[0] != list(range(12))
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize(("step", "index"), [(-1, 0), (0, -1), (0, 3)])
def test_refuses_a_microbatch_that_no_step_has(step: int, index: int) -> None:
    with pytest.raises(ValueError, match="no microbatch"):
        SequenceOrder(sequences=7, microbatches=3, microbatch_sequences=2).of_microbatch(step, index)


@given(size=st.integers(1, 400), seed=st.integers(0, 2**63 - 1))
def test_is_a_permutation(size: int, seed: int) -> None:
    assert sorted(permuted(place, size, seed) for place in range(size)) == list(range(size))


def reference(place: int, size: int, seed: int) -> int:
    """P(place) as docs/run-toml.md says it, written from there."""
    half = max(1, -(-len(f"{size - 1:b}") // 2))
    while True:
        left, right = divmod(place, 2**half)
        for r in range(8):
            digest = hashlib.blake2b(struct.pack("<QQQ", seed, r, right), digest_size=8).digest()
            left, right = right, left ^ struct.unpack("<Q", digest)[0] % 2**half
        place = left * 2**half + right
        if place < size:
            return place


@given(size=st.integers(2, 2**40), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_is_the_documented_permutation(size: int, seed: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, size - 1))
    assert permuted(place, size, seed) == reference(place, size, seed)


def test_stays_what_it_was() -> None:
    """Runs that are resumed with a newer version must see the same order."""
    assert [permuted(place, 10, 0) for place in range(10)] == [4, 6, 2, 9, 7, 0, 5, 8, 3, 1]


def test_neighbours_are_spread_evenly() -> None:
    """Places that fall into each tenth of the range, of 5000 neighbouring ones: 500 expected, deviation 21."""
    size = 10**9
    tenths = [0] * 10
    for place in range(5000):
        tenths[permuted(place, size, 3) * 10 // size] += 1
    assert all(abs(count - 500) < 5 * 21 for count in tenths)
