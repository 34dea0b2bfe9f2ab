"""Blocks that are computed again in the backward pass give the bits of blocks that keep what they need for it."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.runner import StageRunner
from tests.compute.families import tiny
from tests.compute.models import FAMILIES, batch, config_of, stages_of
from tests.further import more_of

CUT = (1, 3)
COMPARED = ("gpt2", "llama-shared", "mistral", "mixtral", "gpt_oss")
MICROBATCHES = 2


def runners(family: str, precision: str, *, again: bool, dropout: bool = False) -> list[StageRunner]:
    """Three stages, whose blocks are computed again or not."""
    config = config_of(family) if family in FAMILIES else tiny(family)
    made = [StageRunner(stage, precision) for stage in stages_of(config, CUT, dropout=dropout)]
    for runner in made:
        runner.stage.block_recompute.on = again
        runner.begin(EXPONENT)
    return made


def learnt(pipeline: list[StageRunner]) -> tuple[list[float], list[Tensor]]:
    """The losses and gradients of some microbatches, all of which go forward before the first one goes back."""
    *before, last = pipeline
    passed: list[list[Tensor]] = []
    for index in range(MICROBATCHES):
        values = [batch(index)[0]]
        for runner in before:
            values.append(runner.forward(index, values[-1], DrawKey(0, 0, index)))
            assert torch.equal(runner.recompute(values[-2], DrawKey(0, 0, index)), values[-1])
        passed.append(values)
    losses = []
    for index, values in enumerate(passed):
        for runner, x in zip(before, values, strict=False):
            runner.evaluate(x)  # no dropout in between
        loss, _, gradient = last.loss(index, values[-1], batch(index)[1], DrawKey(0, 0, index), defer=True)
        if last.unfinished(index):
            last.finish(index)
        losses.append(loss)
        for runner in reversed(before):
            assert gradient is not None
            gradient = runner.backward(index, gradient, defer=True)
            if runner.unfinished(index):
                runner.finish(index)
    return losses, [group.grads for runner in pipeline for group in runner.stage.groups.values()]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("family", "dropout"), [*product(COMPARED, [False]), ("gpt2", True), *more_of(*product(COMPARED[1:], [True]))]
)
def test_the_bits_are_the_same(family: str, precision: str, dropout: bool) -> None:
    losses, gradients = learnt(runners(family, precision, again=False, dropout=dropout))
    found, again = learnt(runners(family, precision, again=True, dropout=dropout))
    assert found == losses
    assert all(torch.equal(one, other) for one, other in zip(again, gradients, strict=True))
    assert any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("again", [False, True])
def test_a_replay_takes_away_what_was_added(again: bool) -> None:
    [_, middle, _] = runners("llama", "fp32", again=again)
    x, grad = torch.randn(2, 12, 32), torch.randn(2, 12, 32)
    middle.forward(0, x)
    assert middle.backward(0, grad) is not None
    middle.replay(x, -1, grad=grad)
    for group in middle.stage.groups.values():
        assert float(group.grads.abs().max()) < 1e-4


def test_a_microbatch_keeps_what_enters_the_blocks() -> None:
    config, x = config_of("llama"), torch.randn(2, 12, 32)
    stage = stages_of(config, CUT)[1]
    runner, blocks = StageRunner(stage), CUT[1] - CUT[0]
    whole = runner.activation_bytes(x)
    stage.block_recompute.on = True
    inputs = runner.activation_bytes(x)
    assert blocks * x.nbytes <= inputs < blocks * x.nbytes + 2 * x.nbytes < whole / 4


def test_a_backward_pass_is_not_split() -> None:
    [_, middle, last] = runners("llama", "fp32", again=True)
    x = torch.randn(2, 12, 32)
    middle.forward(0, x)
    middle.backward(0, x, defer=True)
    last.loss(0, x, batch()[1], defer=True)
    assert not middle.unfinished(0)
    assert not last.unfinished(0)
    assert middle.held == last.held == 0


def test_a_careful_step_names_the_layer() -> None:
    [_, middle, _] = runners("llama", "fp32", again=True)
    middle.begin(EXPONENT, careful=True)
    with torch.no_grad():
        name, values, _ = list(middle.stage.named_parameters())[-1]
        values.fill_(torch.inf)
    with pytest.raises(NotFiniteError) as failed:
        middle.forward(0, torch.randn(2, 12, 32))
    assert failed.value.layer is not None
    assert name.startswith(f"{failed.value.layer}.")
