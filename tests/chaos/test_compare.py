"""What counts as the same parameters: a bit is a difference, and not-a-number is far away."""

from __future__ import annotations

import math

import pytest
import torch

from swarmflow.chaos.compare import LIMIT, compare_bits, compare_within, first_other_loss, order_limits

WANTED = {"a": torch.tensor([1.0, -2.0, 0.0]), "b": torch.tensor([[0.5, 4.0]])}


def copied() -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in WANTED.items()}


def test_equal_bits_are_the_same() -> None:
    comparison = compare_bits(copied(), WANTED, "it")
    assert (comparison.holds, comparison.largest) == (True, 0.0)


@pytest.mark.parametrize("value", [math.nextafter(4.0, 5.0) + 5e-7, 4.0001, math.nan])
def test_another_number_is_another_bit(value: float) -> None:
    found = copied()
    found["b"][0, 1] = value
    comparison = compare_bits(found, WANTED, "it")
    assert not comparison.holds
    assert comparison.tensor == "b"


def test_minus_zero_is_not_zero() -> None:
    found = copied()
    found["a"][2] = -0.0
    assert not compare_bits(found, WANTED, "it").holds


def test_within_the_limits_is_the_same_beyond_them_it_is_not() -> None:
    limits = {"a": 1e-5, "b": 1e-3}
    found = copied()
    found["b"][0, 1] += 4.0 * 9e-4
    assert compare_within(found, WANTED, limits, "it").holds
    found["a"][1] += 2.0 * 2e-5
    comparison = compare_within(found, WANTED, limits, "it")
    assert (comparison.holds, comparison.tensor) == (False, "a")
    assert comparison.largest == pytest.approx(2e-5, rel=0.1)


def test_not_a_number_is_beyond_every_limit() -> None:
    found = copied()
    found["a"][0] = math.nan
    comparison = compare_within(found, WANTED, {"a": 1.0, "b": 1.0}, "it")
    assert (comparison.holds, comparison.tensor) == (False, "a")


def test_limits_are_twenty_times_what_the_order_does() -> None:
    reordered = copied()
    reordered["b"][0, 1] += 4.0 * 1e-4
    limits = order_limits(WANTED, reordered)
    assert limits["a"] == LIMIT
    assert limits["b"] == pytest.approx(20e-4, rel=0.01)


@pytest.mark.parametrize("found", [{"a": WANTED["a"]}, {"a": WANTED["a"], "b": torch.zeros(2)}], ids=["less", "shape"])
def test_other_tensors_are_an_error(found: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="b"):
        compare_bits(found, WANTED, "it")


def test_the_first_step_with_another_loss_is_found() -> None:
    wanted = {0: 5.0, 1: 4.0, 2: 3.0}
    assert first_other_loss({0: 5.0, 2: 3.0}, wanted, exactly=True) is None
    assert first_other_loss({0: 5.0, 1: math.nextafter(4.0, 5.0), 2: 2.0}, wanted, exactly=True) == 1
    assert first_other_loss({0: 5.0, 1: math.nextafter(4.0, 5.0), 2: 2.0}, wanted, exactly=False) == 2
    assert first_other_loss({1: math.nan}, wanted, exactly=False) == 1
