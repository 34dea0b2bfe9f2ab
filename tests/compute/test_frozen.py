"""Buffers of checkpoints that no gradient trains: a part of the state like parameters, and never changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from swarmflow.compute.blocks import alignment
from swarmflow.compute.export import ReadParameters, export_stagewise
from swarmflow.compute.flat_tensors import memory_of
from swarmflow.compute.layout import FROZEN, OWN
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.stage import Stage, build_stage
from swarmflow.compute.update_checksums import UpdateChecksums
from swarmflow.compute.weights import load_stage
from tests.compute.families import tiny
from tests.compute.models import batch, stages_of, whole_model

CUT = (1, 3)
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"


def stages() -> list[Stage]:
    """A model whose biases choose other experts than none would."""
    made = stages_of(tiny("deepseek_v3"), CUT)
    for stage in made:
        if group := stage.groups.get(FROZEN):
            generator = torch.Generator().manual_seed(stage.layout.stage)
            group.params.copy_(torch.randn(group.params.numel(), generator=generator))
    return made


def _forward(parts: list[Stage]) -> torch.Tensor:
    hidden: torch.Tensor = batch()[0]
    with torch.no_grad():
        for part in parts:
            hidden = part.forward(hidden)
    return hidden


def test_they_are_computed_with() -> None:
    parts = stages()
    names = {entry.name for part in parts for entry in part.layout.groups.get(FROZEN, ())}
    assert names == {BIAS.replace("1", str(layer)) for layer in (1, 2, 3)}
    whole = whole_model(tiny("deepseek_v3"), parts)
    expected = whole(input_ids=batch()[0].long(), use_cache=False).logits
    torch.testing.assert_close(_forward(parts), expected, rtol=1e-5, atol=1e-5)
    without = stages_of(tiny("deepseek_v3"), CUT)
    assert not torch.allclose(_forward(without), expected)


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("name", ["adamw", "lamb", "sgd"])
def test_no_update_changes_them_while_parameters_decay(name: str, bits: int) -> None:
    part = build_stage(tiny("deepseek_v3"), CUT, 1, device="cpu", align=alignment(bits))
    optimizer = make_optimizer(OptimizerSettings(name=name, weight_decay=0.5, state_bits=bits))
    for group in part.groups.values():
        group.params.fill_(1.0)
        group.allocate(optimizer.state_names())
    sums = UpdateChecksums(part.groups.values(), ("params", *optimizer.state_names()))
    for group in part.groups.values():
        optimizer.apply(group, torch.zeros_like(group.params), 1.0, 0.1, 0, sums)
    assert bool((part.groups[FROZEN].params == 1.0).all())
    assert bool((part.groups[OWN].params[: part.layout.groups[OWN][0].stop] < 1.0).all())
    for key in sums.before:
        if key.startswith(FROZEN):
            assert torch.equal(sums.before[key], sums.after[key]), key


def test_they_are_exported_and_read_again(tmp_path: Path) -> None:
    parts, config = stages(), tiny("deepseek_v3")

    def reader(stage: int) -> ReadParameters:
        return lambda group, start, stop: memory_of(parts[stage].groups[group].params[start:stop])

    export_stagewise(config, CUT, reader, tmp_path / "out")
    factory: Any = AutoModelForCausalLM  # its types do not know output_loading_info
    model, info = factory.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(model(input_ids=batch()[0].long()).logits, _forward(parts), rtol=1e-5, atol=1e-5)
    again = build_stage(config, (2,), 1, device="cpu")
    load_stage(again, tmp_path / "out")
    assert torch.equal(again.groups[FROZEN].params[:4], model.get_buffer(BIAS.replace("1", "2")))


def test_an_export_in_bf16_holds_in_fp32_what_transformers_keeps_in_fp32(tmp_path: Path) -> None:
    """Close to each other, biases that were rounded would choose other experts."""
    parts = stages()

    def reader(stage: int) -> ReadParameters:
        return lambda group, start, stop: memory_of(parts[stage].groups[group].params[start:stop])

    export_stagewise(tiny("deepseek_v3"), CUT, reader, tmp_path / "out", dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    for part in parts:
        for entry in part.layout.groups.get(FROZEN, ()):
            group = part.groups[FROZEN]
            assert torch.equal(model.get_buffer(entry.name), group.view(group.params, entry))
