"""An exported folder is what plain transformers loads: no missing key, equal logits."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from swarmflow.compute.export import ReadParameters, export_stagewise
from swarmflow.compute.families import model_config
from swarmflow.compute.flat_tensors import memory_of
from swarmflow.compute.stage import Stage, build_stage
from swarmflow.compute.weights import load_stage
from swarmflow.errors import CheckpointError
from tests.compute.models import CUTS, FAMILIES, batch, config_of, stages_of


def _reader(stages: list[Stage]) -> Callable[[int], ReadParameters]:
    def open_stage(stage: int) -> ReadParameters:
        groups = stages[stage].groups
        return lambda group, start, stop: memory_of(groups[group].params[start:stop])

    return open_stage


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_round_trip(family: str, cut: tuple[int, ...], tmp_path: Path) -> None:
    config = config_of(family)
    stages = stages_of(config, cut, seed=5)
    out = tmp_path / "final"
    export_stagewise(config, cut, _reader(stages), out, lambda folder: (folder / "tokenizer.json").touch())
    assert (out / "tokenizer.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    factory: Any = AutoModelForCausalLM  # its types do not know output_loading_info
    model, info = factory.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    assert model.dtype == torch.float32
    x, _ = batch()
    hidden: torch.Tensor = x
    with torch.no_grad():
        for stage in stages:
            hidden = stage.forward(hidden)
        expected = model(input_ids=x.long()).logits
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
    assert model.generate(x.long()[:1], max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (1, 15)


def test_an_export_starts_the_next_run_with_another_cut(tmp_path: Path) -> None:
    config = config_of("gpt2")
    stages = stages_of(config, (1, 3), seed=5)
    export_stagewise(config, (1, 3), _reader(stages), tmp_path / "out")
    again = model_config(tmp_path / "out")
    assert again == config
    last = build_stage(again, (2,), 1, device="cpu")
    load_stage(last, tmp_path / "out")
    expected = {name: values for name, values, _ in stages_of(config, (2,), seed=5)[1].named_parameters()}
    for name, values, _ in last.named_parameters():
        assert torch.equal(values, expected[name])


def test_an_older_export_is_replaced_only_by_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("llama")
    stages = stages_of(config, (2,), seed=5)
    out = tmp_path / "final"
    export_stagewise(config, (2,), _reader(stages), out)
    before = sorted((path.name, path.read_bytes()) for path in out.iterdir())

    def full(handle: int, data: memoryview, at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("swarmflow.compute.tensorfile.os.pwrite", full)
        with pytest.raises(CheckpointError, match="No space left"):
            export_stagewise(config, (2,), _reader(stages), out)
    assert sorted((path.name, path.read_bytes()) for path in out.iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    export_stagewise(config, (2,), _reader(stages_of(config, (2,), seed=6)), out)
    assert sorted((path.name, path.read_bytes()) for path in out.iterdir()) != before
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
