"""A folder of weights that is not whole is told before anybody is asked to load it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from swarmflow.compute.weights import load_stage
from swarmflow.compute.weights_folder import weights_problems
from tests.compute.models import config_of, stages_of, whole_model

FAMILY = "llama"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Weights in several files."""
    config = config_of(FAMILY)
    whole_model(config, stages_of(config, ())).save_pretrained(tmp_path, max_shard_size="20KB")
    return tmp_path


def change(folder: Path, tensor: str, act: Callable[[dict[str, object], str], object]) -> None:
    """Write the file again that holds a tensor."""
    path = folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][tensor]
    tensors = load_file(path)
    act(tensors, tensor)
    save_file(tensors, path)


def cut_short(folder: Path) -> None:
    path = max(folder.glob("model-*.safetensors"), key=lambda path: path.stat().st_size)
    os.truncate(path, path.stat().st_size - 1)


def rename(folder: Path) -> None:
    (folder / "model.safetensors.index.json").rename(folder / "other.json")


NORM = "model.layers.1.input_layernorm.weight"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (cut_short, "is missing or corrupt"),
    "a file is missing": (lambda at: min(at.glob("model-*.safetensors")).unlink(), "is missing or corrupt"),
    "a tensor is missing": (lambda at: change(at, NORM, lambda some, name: some.pop(name)), NORM),
    "a shape": (
        lambda at: change(at, NORM, lambda some, name: some.update({name: some[name][:3].clone()})),  # type: ignore[index]
        "has the shape [3], but config.json asks for [32]",
    ),
    "a type": (
        lambda at: change(at, NORM, lambda some, name: some.update({name: some[name].int()})),  # type: ignore[attr-defined]
        "is of type I32",
    ),
    "the index is missing": (rename, "but no model.safetensors and no model.safetensors.index.json"),
}


def test_whole_weights_are_let_through_and_so_is_a_folder_without_any(folder: Path, tmp_path: Path) -> None:
    assert weights_problems(config_of(FAMILY), folder) == []
    (tmp_path / "empty").mkdir()
    assert weights_problems(config_of(FAMILY), tmp_path / "empty") == []


def test_of_one_file_and_an_index_beside_it_the_file_is_read_as_by_transformers(folder: Path) -> None:
    config = config_of(FAMILY)
    whole_model(config, stages_of(config, (), seed=1)).save_pretrained(folder / "one")
    (folder / "one" / "model.safetensors").rename(folder / "model.safetensors")
    (stage,) = stages_of(config, ())
    load_stage(stage, folder)
    expected = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    assert all(torch.equal(values, expected[name]) for name, values, _ in stage.named_parameters())


@pytest.mark.parametrize("what", DAMAGE)
def test_each_kind_of_damage_is_one_line(what: str, folder: Path) -> None:
    damage, words = DAMAGE[what]
    damage(folder)
    (line,) = weights_problems(config_of(FAMILY), folder)
    assert words in line
    assert "\n" not in line


def test_all_kinds_are_told_and_like_ones_once(folder: Path) -> None:
    """As when a folder's config.json is another model's."""
    config = config_of(FAMILY) | {"num_hidden_layers": 6, "intermediate_size": 40}
    shapes, missing = sorted(weights_problems(config, folder), key=lambda line: "no tensor" in line)
    assert "mlp.gate_proj.weight" in shapes
    assert "(and 11 tensors like it)" in shapes
    assert "has no tensor model.layers.4" in missing
