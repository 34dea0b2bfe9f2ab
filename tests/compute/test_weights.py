"""Initial weights: the same bits however the model is cut, from a seed and from a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from swarmflow.compute.families import to_config
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.stage import Stage, build_stage
from swarmflow.compute.weights import LayoutReader, load_stage
from swarmflow.compute.weights_folder import has_weights
from swarmflow.errors import CheckpointError
from tests.compute.models import CUTS, FAMILIES, UNSHARED, config_of, stages_of, whole_model


def _weights(stages: list[Stage]) -> dict[str, torch.Tensor]:
    return {name: values.clone() for stage in stages for name, values, _ in stage.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_fresh_weights_do_not_depend_on_the_cut(family: str) -> None:
    config = config_of(family)
    state = torch.get_rng_state()
    whole = _weights(stages_of(config, (), seed=7))
    assert torch.equal(state, torch.get_rng_state())
    for cut in CUTS[1:]:
        for name, values in _weights(stages_of(config, cut, seed=7)).items():
            assert torch.equal(values, whole[name]), name
    other = _weights(stages_of(config, (), seed=8))
    drawn = [name for name, values in whole.items() if values.ndim == 2]
    assert all(not torch.equal(whole[name], other[name]) for name in drawn)


@pytest.mark.parametrize("family", UNSHARED)
def test_fresh_weights_have_the_familys_own_spread(family: str) -> None:
    config = config_of(family)
    fresh = _weights(stages_of(config, (), seed=7))
    torch.manual_seed(0)
    factory: Any = AutoModelForCausalLM  # untyped in transformers
    for name, parameter in factory.from_config(to_config(config)).named_parameters():
        expected = parameter.detach()
        if float(expected.std()) == 0.0:
            assert torch.equal(fresh[name], expected), name
        else:
            assert float(fresh[name].std()) == pytest.approx(float(expected.std()), rel=0.15), name


@pytest.mark.parametrize("shard", ["5GB", "20KB"])
@pytest.mark.parametrize("family", UNSHARED)
def test_a_folder_is_read_stage_by_stage(family: str, shard: str, tmp_path: Path) -> None:
    config = config_of(family)
    truth = stages_of(config, (), seed=3)
    whole_model(config, truth).save_pretrained(tmp_path, max_shard_size=shard)
    assert has_weights(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").is_file() == (shard == "20KB")
    expected = _weights(truth)
    for stage in range(3):
        part = build_stage(config, (1, 3), stage, device="cpu")
        load_stage(part, tmp_path)
        for name, values, _ in part.named_parameters():
            assert torch.equal(values, expected[name]), name


def test_ranges_of_the_flat_layout_are_served_without_the_model(tmp_path: Path) -> None:
    config = config_of("gpt2")
    stages = stages_of(config, (2,), seed=3)
    whole_model(config, stages).bfloat16().save_pretrained(tmp_path)
    layout = stage_layout(config, (2,), 1)
    assert layout == stages[1].layout
    with LayoutReader(layout, tmp_path) as reader:
        for group, flat in stages[1].groups.items():
            rounded = flat.params.bfloat16().float()
            for start in range(0, flat.params.numel(), 777):
                stop = min(start + 777, flat.params.numel())
                got = torch.frombuffer(bytearray(reader.read(group, start, stop)), dtype=torch.float32)
                assert torch.equal(got, rounded[start:stop])
        with pytest.raises(ValueError, match="elements"):
            reader.read("own", 0, layout.elements("own") + 1)


def test_checkpoints_of_the_bare_base_model_load(tmp_path: Path) -> None:
    config = config_of("gpt2")
    stages = stages_of(config, (), seed=3)
    base = whole_model(config, stages).get_submodule("transformer")
    assert isinstance(base, PreTrainedModel)
    base.save_pretrained(tmp_path)
    part = build_stage(config, (), 0, device="cpu")
    load_stage(part, tmp_path)
    assert torch.equal(part.groups["own"].params, stages[0].groups["own"].params)


def test_bad_folders_are_one_clear_line(tmp_path: Path) -> None:
    config = config_of("llama")
    part = build_stage(config, (), 0, device="cpu")
    with pytest.raises(CheckpointError, match="only safetensors"):
        load_stage(part, tmp_path)
    whole_model(config | {"num_hidden_layers": 2}, stages_of(config | {"num_hidden_layers": 2}, ())).save_pretrained(
        tmp_path
    )
    with pytest.raises(CheckpointError, match=r"no tensor model\.layers\.2"):
        load_stage(part, tmp_path)
    wider = config | {"intermediate_size": 64}
    with pytest.raises(CheckpointError, match="shape"):
        load_stage(build_stage(wider, (), 0, device="cpu"), tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="corrupt"):
        load_stage(part, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret"}}))
    with pytest.raises(CheckpointError, match="plain name"):
        load_stage(part, tmp_path)
