"""A backward pass in two parts has the bits of one, whatever is computed between them."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from swarmflow.compute.grouped_stage import GroupedStage
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.split_backward import split
from swarmflow.compute.stage import Stage
from tests.compute.models import FAMILIES, VOCAB, config_of, stages_of
from tests.further import more_of

VARIANTS = [
    *product(FAMILIES, ["fp32"]),
    *product(("gpt2", "llama"), ["bf16"]),
    *more_of(*product([family for family in FAMILIES if family not in ("gpt2", "llama")], ["bf16"])),
]


def runners(family: str, precision: str, stage: int, **rounding: object) -> tuple[StageRunner, StageRunner]:
    """Two of the same stage of three, at the beginning of a step."""
    made = [StageRunner(stages_of(config_of(family), (1, 3), **rounding)[stage], precision) for _ in range(2)]  # type: ignore[arg-type]
    for runner in made:
        runner.begin(8)
    return made[0], made[1]


def given(seed: int, stage: GroupedStage) -> tuple[Tensor, Tensor]:
    """An input, and the gradient of the output."""
    assert isinstance(stage, Stage)
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 7, stage.boundary_width)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def targets(seed: int) -> Tensor:
    return torch.randint(VOCAB, (2, 7), generator=torch.Generator().manual_seed(seed))


def assert_same(one: GroupedStage, other: GroupedStage) -> None:
    """Both have the same gradients, or the same sums of rounded ones, to the bit."""
    for name, group in one.groups.items():
        same = other.groups[name]
        assert group.grads.any() or group.rounding is not None or not group.entries
        assert torch.equal(group.grads, same.grads), name
        whole = 0, group.sums.elements
        assert group.sums.digest(*whole) == same.sums.digest(*whole), name


@pytest.mark.parametrize(("family", "precision"), VARIANTS)
def test_both_parts_have_the_bits_of_one_pass(family: str, precision: str) -> None:
    whole, parts = runners(family, precision, 1)
    for number in range(2):
        x, gradient = given(number, whole.stage)
        assert torch.equal(whole.forward(number, x), parts.forward(number, x))
        expected, found = whole.backward(number, gradient), parts.backward(number, gradient, defer=True)
        assert expected is not None
        assert found is not None
        assert torch.equal(expected, found)
        assert parts.unfinished(number)
    for number in range(2):
        parts.finish(number)
    assert parts.held == 0
    assert_same(whole.stage, parts.stage)


@pytest.mark.parametrize(("family", "precision"), VARIANTS)
def test_so_has_the_last_stage(family: str, precision: str) -> None:
    whole, parts = runners(family, precision, 2)
    for number in range(2):
        x, y = given(number, whole.stage)[0], targets(number)
        (loss, tokens, expected), found = whole.loss(number, x, y), parts.loss(number, x, y, defer=True)
        assert (loss, tokens) == found[:2]
        assert expected is not None
        assert found[2] is not None
        assert torch.equal(expected, found[2])
        assert parts.unfinished(number)
    for number in range(2):
        parts.finish(number)
    assert_same(whole.stage, parts.stage)


@pytest.mark.parametrize("codec", ["none", "blockwise16"])
@pytest.mark.parametrize("stage", [1, 2])
def test_so_have_sums_of_rounded_gradients(stage: int, codec: str) -> None:
    whole, parts = runners("llama", "fp32", stage, microbatches=4, reduce_codec=codec)
    for number in range(2):
        x, gradient = given(number, whole.stage)
        for runner, defer in ((whole, False), (parts, True)):
            if runner.stage.last:
                runner.loss(number, x, targets(number), number=number, defer=defer)
            else:
                runner.forward(number, x)
                runner.backward(number, gradient, number, defer=defer)
    for number in range(2):
        parts.finish(number, number)
    assert_same(whole.stage, parts.stage)


def test_the_first_stage_and_a_careful_step_have_one_part() -> None:
    first = StageRunner(stages_of(config_of("llama"), (1, 3))[0])
    first.forward("m", targets(0).int())
    assert first.backward("m", given(0, first.stage)[1], defer=True) is None
    assert not first.unfinished("m")
    careful = runners("llama", "fp32", 1)[0]
    careful.begin(8, careful=True)
    x, gradient = given(0, careful.stage)
    careful.forward("m", x)
    assert careful.backward("m", gradient, defer=True) is not None
    assert not careful.unfinished("m")


def test_what_is_dropped_between_the_parts_adds_nothing() -> None:
    runner = runners("llama", "fp32", 1)[0]
    x, gradient = given(0, runner.stage)
    runner.forward("m", x)
    runner.backward("m", gradient, defer=True)
    runner.drop("m")
    assert runner.held == 0
    assert not any(group.grads.any() for group in runner.stage.groups.values())


def test_where_a_parameter_is_used_twice_nothing_is_split() -> None:
    leaf, weight = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    output = (leaf * weight) * weight
    assert split(get_gradient_edge(output), torch.ones(3), leaf) is None
    assert leaf.grad is None
    assert weight.grad is None
