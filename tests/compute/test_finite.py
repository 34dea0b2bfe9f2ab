"""What is not finite is found where it arises, in whichever layer; an update that gives it is an error."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from swarmflow.compute.finite import NotFiniteError, finite
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner
from tests.compute.models import batch, config_of, stages_of

BROKEN = [math.nan, math.inf, -math.inf]
MODES = [None, 4]


def runners(family: str = "llama", microbatches: int | None = None) -> list[StageRunner]:
    """Blocks 0 and 1, blocks 2 and 3. microbatches: gradients add up as integers."""
    made = [StageRunner(stage) for stage in stages_of(config_of(family), (2,), microbatches=microbatches)]
    for runner in made:
        runner.begin(36, careful=True)
    return made


def break_gradient(runner: StageRunner, name: str, value: float) -> None:
    """From now on a backward gives this value for one element of a parameter's gradient."""

    def broken(gradient: Tensor) -> Tensor:
        spoilt = gradient.clone()
        spoilt.view(-1)[-1] = value
        return spoilt

    unit = next(unit for unit in runner.stage.order if name.startswith(f"{unit}."))
    parameter = runner.stage.units[unit].get_parameter(name.removeprefix(f"{unit}."))
    parameter.register_hook(broken)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [*BROKEN, 1.0])
@pytest.mark.parametrize("at", [0, 999])
def test_one_element_is_enough(dtype: torch.dtype, value: float, at: int) -> None:
    tensor = torch.full((10, 100), torch.finfo(dtype).max, dtype=dtype)  # whose sum is infinite
    tensor[1:5] *= -1
    tensor.view(-1)[at] = value
    assert finite(tensor) is math.isfinite(value)
    assert finite(torch.empty(0, dtype=dtype))


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
@pytest.mark.parametrize("block", [0, 1])
def test_a_careful_forward_names_the_first_layer_whose_output_is_not_finite(family: str, block: int) -> None:
    first = runners(family)[0]
    name = first.stage.block_names[block]
    with torch.no_grad():
        next(first.stage.units[name].get_submodule("mlp").parameters()).fill_(math.nan)
    with pytest.raises(NotFiniteError) as caught:
        first.forward("m", batch()[0])
    assert (caught.value.value, caught.value.layer) == ("activation", name)
    first.begin(36)
    assert not finite(first.forward("m", batch()[0])), "else only who sends the output looks at it"


@pytest.mark.parametrize("microbatches", MODES)
@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize("way", ["backward", "replay"])
def test_a_careful_backward_names_the_layer_in_which_it_began(way: str, value: float, microbatches: int | None) -> None:
    first, last = runners(microbatches=microbatches)
    tokens, targets = batch()
    hidden = first.forward("m", tokens)
    _, _, gradient = last.loss("m", hidden, targets)
    assert gradient is not None
    break_gradient(first, f"{first.stage.block_names[1]}.mlp.down_proj.weight", value)
    again = partial(first.backward, "m", gradient)
    if way == "replay":
        again = partial(first.replay, tokens, 1, grad=gradient)
    with pytest.raises(NotFiniteError) as caught:
        again()
    assert (caught.value.value, caught.value.layer) == ("gradient", first.stage.block_names[1])
    if microbatches is not None:
        assert not any(bool(group.summed.any()) for group in first.stage.groups.values()), "nothing was added"


def test_without_care_integers_find_it_all_the_same_and_floats_in_their_norm() -> None:
    for microbatches in MODES:
        last = runners(microbatches=microbatches)[1]
        last.begin(36)
        break_gradient(last, f"{last.stage.block_names[0]}.mlp.down_proj.weight", math.nan)
        hidden = torch.randn(2, 12, 32)
        if microbatches is not None:
            with pytest.raises(NotFiniteError, match=r"layers\.2"):
                last.loss("m", hidden, batch()[1])
            continue
        last.loss("m", hidden, batch()[1])
        group = last.stage.groups["own"]
        assert math.isnan(group.sums.sum_of_squares())
        assert last.stage.gradients_broken_in() == last.stage.block_names[0]


def test_a_gradient_of_the_input_alone_is_the_first_layers() -> None:
    last = runners()[1]
    block = last.stage.units[last.stage.block_names[0]]

    def broken(module: Any, inputs: Any, outputs: Any) -> Any:  # noqa: ANN401  # torch's own types
        return tuple(None if each is None else each * math.nan for each in inputs)

    block.register_full_backward_hook(broken)
    with pytest.raises(NotFiniteError) as caught:
        last.loss("m", torch.randn(2, 12, 32), batch()[1])
    assert caught.value.layer == last.stage.block_names[0]


@pytest.mark.parametrize("microbatches", MODES)
def test_a_loss_that_is_not_finite_is_told_before_anything_is_added(microbatches: int | None) -> None:
    last = runners(microbatches=microbatches)[1]
    last.begin(36)
    with torch.no_grad():
        last.stage.units[last.stage.order[-1]].get_parameter("weight")[0, 0] = math.inf
    with pytest.raises(NotFiniteError) as caught:
        last.loss("m", torch.randn(2, 12, 32), batch()[1])
    assert caught.value.value == "loss"
    if microbatches is not None:
        assert not any(bool(group.summed.any() or group.grads.any()) for group in last.stage.groups.values())


def test_the_next_try_looks_no_more_than_it_is_told_to() -> None:
    first = runners()[0]
    looking = {name: len(unit._forward_hooks) for name, unit in first.stage.units.items()}
    first.begin(36)
    assert {name: len(unit._forward_hooks) + 1 for name, unit in first.stage.units.items()} == looking


@pytest.mark.parametrize("name", ["adamw", "lamb", "sgd"])
@pytest.mark.parametrize(("gradient", "rate"), [(1.0, 1e39), (1e30, 1.0)])
def test_an_update_that_is_not_finite_is_refused(name: str, gradient: float, rate: float) -> None:
    if name == "sgd" and rate == 1.0:
        gradient = 1e38
    group = stages_of(config_of("llama"), ())[0].groups["own"]
    optimizer = make_optimizer(OptimizerSettings(name))
    group.allocate(optimizer.state_names())
    scale = 10.0 if name == "sgd" else 1.0
    with pytest.raises(NotFiniteError) as caught:
        optimizer.apply(group, torch.full_like(group.params, gradient), scale, rate, 0)
    assert caught.value.value == "update"
    assert caught.value.layer in {entry.name for entry in group.entries}


@pytest.mark.parametrize("name", ["adamw", "lamb", "sgd"])
def test_the_largest_gradient_that_is_committed_gives_a_finite_update(name: str) -> None:
    group = stages_of(config_of("llama"), ())[0].groups["own"]
    optimizer = make_optimizer(OptimizerSettings(name))
    group.allocate(optimizer.state_names())
    for version in range(3):
        optimizer.apply(group, torch.full_like(group.params, 1e18), 1.0, 1e-3, version)
    assert all(finite(tensor) for tensor in group.tensors().values())
