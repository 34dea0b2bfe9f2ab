"""Learnt boundaries: stages compute what plain modules compute, from the same first values, and less travels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM

from swarmflow.boundary import Boundary
from swarmflow.chaos.plain import write_model
from swarmflow.compute.codec import codec_named
from swarmflow.compute.demands import measure_activations, stage_demands
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.export import export_stagewise
from swarmflow.compute.families import model_config, to_config
from swarmflow.compute.flat_tensors import memory_of
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import Stage, build_stage
from swarmflow.compute.weights import init_stage, load_stage
from swarmflow.errors import ModelError
from tests.compute.models import batch, config_of, stages_of
from tests.runtime.manifests import manifest
from tests.swarm.boundary_twin import Twin, exported

CUT = (1, 3)
KINDS = ("bottleneck:8", "bottleneck:13", "maxout:4")
HIDDEN = 32


def trained(runners: list[StageRunner], *, defer: bool = False, dtype: torch.dtype = torch.float32) -> float:
    """Pass a microbatch forth and back; return its loss. dtype: of what travels."""
    x, y = batch()
    draw = DrawKey(0, 0, 0) if runners[0].stage.dropout else None
    passed: Tensor = x
    for runner in runners[:-1]:
        passed = runner.forward("m", passed, draw).to(dtype)
    loss, _, gradient = runners[-1].loss("m", passed, y, draw, defer=defer)
    for runner in reversed(runners[:-1]):
        assert gradient is not None
        gradient = runner.backward("m", gradient.to(dtype), defer=defer)
    for runner in runners:
        if runner.unfinished("m"):
            runner.finish("m")
    return loss


@pytest.mark.parametrize("boundary", KINDS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_stages_compute_what_plain_modules_compute(family: str, boundary: str, tmp_path: Path) -> None:
    """From a folder's weights and new boundaries: the loss, and every gradient."""
    config = config_of(family)
    write_model(to_config(config), tmp_path)
    stages = stages_of(config, CUT, boundary=Boundary.parse(boundary))
    for stage in stages:
        load_stage(stage, tmp_path, seed=0)
    twin = Twin(tmp_path, boundary, CUT)
    x, y = batch()
    expected = twin.loss(x.long(), y)
    torch.autograd.backward(expected)
    assert trained([StageRunner(stage) for stage in stages]) == pytest.approx(expected.item(), rel=1e-6)
    sums: dict[str, Tensor] = {}
    for stage in stages:
        for name, _, gradient in stage.named_parameters():
            assert gradient is not None
            sums[name] = sums[name] + gradient if name in sums else gradient
    own = twin.parameters_by_name()
    assert set(sums) == set(own)
    for name, parameter in own.items():
        assert parameter.grad is not None
        scale = max(1.0, float(parameter.grad.abs().max()))
        torch.testing.assert_close(sums[name], parameter.grad, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("boundary", KINDS)
def test_both_ends_begin_alike_wherever_the_weights_come_from(boundary: str, tmp_path: Path) -> None:
    config, width = config_of("llama"), Boundary.parse(boundary).width(HIDDEN)
    write_model(to_config(config), tmp_path)
    found: list[dict[str, Tensor]] = []
    for number in range(3):
        drawn = build_stage(config, CUT, number, device="cpu", boundary=Boundary.parse(boundary))
        read = build_stage(config, CUT, number, device="cpu", boundary=Boundary.parse(boundary))
        init_stage(drawn, seed=7)
        load_stage(read, tmp_path, seed=7)
        others = {name: values for name, values, _ in read.named_parameters()}
        found.append({name: values for name, values, _ in drawn.named_parameters() if name.startswith("boundary.")})
        assert all(torch.equal(values, others[name]) for name, values in found[-1].items())
    down, up = (found[stage].get(f"boundary.1.{half}.weight") for stage, half in ((0, "compress"), (1, "expand")))
    assert up is not None
    if down is not None:
        torch.testing.assert_close(down @ down.T, torch.eye(width))
        assert torch.equal(up, down.T * (HIDDEN / width))
        assert not torch.equal(down, found[1]["boundary.2.compress.weight"])


@pytest.mark.parametrize("boundary", ["bottleneck:8", "maxout:4"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("how", [{}, {"microbatches": 4}, {"microbatches": 4, "reduce_codec": "blockwise16"}])
def test_a_pass_in_two_parts_has_the_bits_of_one(how: dict[str, object], precision: str, boundary: str) -> None:
    """With fp32, exact and 16-bit sums, dropout, and tensors that travel in the run's precision."""
    config = config_of("gpt2") | {"attn_pdrop": 0.2, "resid_pdrop": 0.2}
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    made: list[list[Stage]] = []
    losses: list[float] = []
    for defer in (False, True):
        stages = stages_of(config, CUT, dropout=True, boundary=Boundary.parse(boundary), **how)  # type: ignore[arg-type]
        runners = [StageRunner(stage, precision) for stage in stages]
        for runner in runners:
            runner.begin(8)
        losses.append(trained(runners, defer=defer, dtype=dtype))
        made.append(stages)
    assert losses[0] == losses[1]
    for one, other in zip(*made, strict=True):
        for name, group in one.groups.items():
            assert group.sums.digest(0, group.sums.elements) == other.groups[name].sums.digest(0, group.sums.elements)
    x, _ = batch()
    assert torch.equal(runners[0].recompute(x, DrawKey(0, 0, 0)), runners[0].forward("m", x, DrawKey(0, 0, 0)))


@given(
    kind=st.sampled_from(["bottleneck", "maxout"]), number=st.integers(1, 80), hidden_size=st.sampled_from([1, 32, 48])
)
def test_a_boundary_is_possible_where_less_travels_but_two_numbers_at_least(
    kind: str, number: int, hidden_size: int
) -> None:
    boundary = Boundary.parse(f"{kind}:{number}")
    assert Boundary.parse(str(boundary)) == boundary
    width = boundary.width(hidden_size)
    reduced = 1 < width < hidden_size
    whole = kind == "bottleneck" or width * number == hidden_size
    assert (boundary.problem(hidden_size) is None) == (reduced and whole)


def test_an_impossible_boundary_is_refused_in_one_line() -> None:
    with pytest.raises(ModelError, match=r'^model\.boundary = "maxout:5": the model\'s hidden size is 32'):
        stage_layout(config_of("llama"), CUT, 0, boundary=Boundary("maxout", 5))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("boundary", ["bottleneck:8", "maxout:4"])
def test_what_is_told_before_a_run_counts_them(boundary: str, precision: str) -> None:
    config, chosen = config_of("llama"), Boundary.parse(boundary)
    run = manifest(model=config, cut=CUT, boundary=chosen, precision=precision, seq_len=32, tied=False)
    told = stage_demands(run, measure_activations(config, precision, False, chosen))
    for one, stage in zip(told, stages_of(config, CUT, boundary=chosen), strict=True):
        x = torch.zeros(2, 32, dtype=torch.int64) if stage.first else torch.zeros(2, 32, 8)
        taken = StageRunner(stage, precision).activation_bytes(x)
        # In bf16 the blocks behind a boundary get bf16, and those that are measured fp32.
        assert 0.9 * taken <= one.microbatch_bytes <= (1.1 if precision == "fp32" else 1.2) * taken
        assert one.parameters == stage.layout.parameters
    tensor = torch.randn(2, 32, 8)
    encoded = len(codec_named("blockwise8").encode(tensor))
    assert told[0].sent_bytes == tensor.numel() <= encoded < run.tensor_bytes_max


@pytest.mark.parametrize("boundary", ["bottleneck:8", "maxout:4"])
def test_an_export_holds_every_parameter_and_is_not_taken_for_the_plain_model(boundary: str, tmp_path: Path) -> None:
    config, chosen = config_of("gpt2"), Boundary.parse(boundary)
    stages = stages_of(config, CUT, boundary=chosen)
    groups = [stage.groups for stage in stages]
    out = tmp_path / "final"
    export_stagewise(
        config,
        CUT,
        lambda stage: lambda group, start, stop: memory_of(groups[stage][group].params[start:stop]),
        out,
        boundary=chosen,
    )
    assert json.loads((out / "stages.json").read_text()) == {"model": config, "cut": [1, 3], "boundary": boundary}
    found = exported(out)
    own = {name: values for stage in stages for name, values, _ in stage.named_parameters()}
    assert found.keys() == own.keys()
    assert all(torch.equal(found[name], own[name]) for name in own)
    for given_config in ({}, {"config": to_config(config)}):
        with pytest.raises((OSError, ValueError)):
            AutoModelForCausalLM.from_pretrained(out, **given_config)
    with pytest.raises(ModelError, match=r"has no config\.json"):
        model_config(out)
