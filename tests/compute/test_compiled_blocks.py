"""Compiled blocks learn what others do, and a repetition has the same bits."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from swarmflow.compute.compiled_blocks import compile_blocks
from swarmflow.compute.runner import StageRunner
from tests.compute.models import batch, config_of, stages_of
from tests.compute.test_block_recompute import CUT, learnt, runners

# On macOS `g++` is another compiler, and lacks the OpenMP that torch's kernels for a CPU need.
HAS_COMPILER = sys.platform == "linux" and shutil.which("g++") is not None
NO_COMPILER = "torch.compile needs a C++ compiler with OpenMP"
pytestmark = pytest.mark.skipif(not HAS_COMPILER, reason=NO_COMPILER)

BLOCKS = 4


def compiled(family: str, precision: str, *, again: bool = False) -> list[StageRunner]:
    """Three stages with compiled blocks."""
    made = runners(family, precision, again=again)
    x = batch(0)[0]
    for runner in made:
        assert compile_blocks([runner], x) is None
        x = runner.recompute(x)
    return made


@pytest.mark.parametrize(("precision", "again"), [("fp32", False), ("bf16", True)])
def test_they_learn_what_others_do(precision: str, again: bool) -> None:
    """`learnt` compares the bits of a microbatch that is computed once more."""
    before = counters["stats"]["unique_graphs"]
    losses, gradients = learnt(compiled("gpt2", precision, again=again))
    assert counters["stats"]["unique_graphs"] >= before + BLOCKS, "each of them has a scale of its own"
    plain_losses, plain_gradients = learnt(runners("gpt2", precision, again=again))
    tolerance = 1e-5 if precision == "fp32" else 3e-2
    assert losses == pytest.approx(plain_losses, rel=tolerance)
    for gradient, plain in zip(gradients, plain_gradients, strict=True):
        assert (gradient - plain).abs().max() <= tolerance * plain.abs().max()


def test_what_drops_is_not_compiled() -> None:
    [first, *_] = [StageRunner(stage) for stage in stages_of(config_of("gpt2"), CUT, dropout=True)]
    reason = compile_blocks([first], batch(0)[0])
    assert reason is not None
    assert "dropout" in reason
    assert not first.stage.block_recompute.compiled


def test_blocks_that_cannot_be_compiled_are_computed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runners("llama-shared", "fp32", again=False)[0]
    expected = first.recompute(batch(0)[0])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with torch._inductor.config.patch({"cpp.cxx": ("/nowhere/g++",), "fx_graph_cache": False}):
        reason = compile_blocks([first], batch(0)[0])
    assert reason is not None
    assert "compiler" in reason
    assert not first.stage.block_recompute.compiled
    assert torch.equal(first.recompute(batch(0)[0]), expected)
