"""Exports have the dtype of the weights from which a run began, or the one that RUN.toml or `--dtype` names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

from swarmflow.commands.export import export
from swarmflow.compute.families import to_config
from swarmflow.config import EXPORT_DTYPES, load
from swarmflow.files import write_sealed
from tests.owners import RUN_ID
from tests.runtime.manifests import manifest
from tests.runtime.test_copy_keeper import written
from trainers.data import open_corpus
from trainers.needs import disk_needs
from trainers.plan import new_manifest

RUN = """
[run]
{run}
[model]
path = "model"
cut = [1]
[data]
path = "text"
seq_len = 8
"""
MODEL = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2} | {
    "num_attention_heads": 2,
    "vocab_size": 256,
}
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


def planned(folder: Path, run: str = "") -> str:
    """Return the dtype of a run's exports whose model is in `folder`/model."""
    (folder / "text").write_bytes(b"the quick brown fox " * 20)
    (folder / "RUN.toml").write_text(RUN.format(run=run))
    config = load(folder / "RUN.toml")
    return new_manifest(config, open_corpus(config, None, folder / "cache"), RUN_ID).export_dtype


def model_in(folder: Path, dtype: torch.dtype) -> Path:
    factory: Any = AutoModelForCausalLM  # untyped in transformers
    factory.from_config(to_config(MODEL), dtype=dtype).save_pretrained(folder / "model")
    return folder / "model"


@pytest.mark.parametrize("dtype", SIZES)
def test_the_source_says_the_dtype(dtype: str, tmp_path: Path) -> None:
    model_in(tmp_path, getattr(torch, dtype))
    assert planned(tmp_path) == dtype
    assert planned(tmp_path, 'export_dtype = "source"') == dtype


def test_an_export_generates_as_its_source(tmp_path: Path) -> None:
    """A chat model's second stop token may be there alone."""
    folder = model_in(tmp_path, torch.float32)
    GenerationConfig(eos_token_id=[2, 7]).save_pretrained(folder)
    planned(tmp_path)
    config = load(tmp_path / "RUN.toml")
    beside = tmp_path / "trainer-float32-None" / "tokenizer"
    open_corpus(config, None, tmp_path / "cache").save_tokenizer(beside)
    exported(tmp_path, "float32", None)
    found: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "float32" / "None")
    assert found.generation_config.eos_token_id == [2, 7]


def test_what_run_toml_names_comes_before_the_source(tmp_path: Path) -> None:
    model_in(tmp_path, torch.bfloat16)
    assert planned(tmp_path, 'export_dtype = "float16"') == "float16"


def test_fresh_weights_and_those_of_another_dtype_are_exported_in_fp32(tmp_path: Path) -> None:
    folder = model_in(tmp_path, torch.float64)
    assert planned(tmp_path) == "float32"
    config = folder / "config.json"
    config.write_text(config.read_text().replace("float64", "bfloat16"))
    (folder / "model.safetensors").unlink()
    assert planned(tmp_path) == "float32", "there is a configuration, and no weights"


@pytest.mark.parametrize("chosen", [None, *SIZES])
@pytest.mark.parametrize("of_run", SIZES)
def test_transformers_loads_what_was_exported_in_its_dtype(of_run: str, chosen: str | None, tmp_path: Path) -> None:
    trained, dtype = exported(tmp_path, "float32", None), chosen or of_run
    found = exported(tmp_path, of_run, chosen)
    assert set(found) == set(trained)
    for name, values in found.items():
        assert values.dtype == getattr(torch, dtype)
        assert torch.equal(values, trained[name].to(values.dtype)), "rounded to the nearest"
    weights = sum(path.stat().st_size for path in (tmp_path / of_run / str(chosen)).glob("*.safetensors"))
    numbers = sum(values.numel() for values in found.values())
    assert weights == pytest.approx(SIZES[dtype] * numbers, rel=0.2), "headers are much of a tiny model"


def exported(folder: Path, of_run: str, chosen: str | None) -> dict[str, Tensor]:
    """What plain transformers loads of an export by the command, from a trainer's folder."""
    of, trainer = manifest(export_dtype=of_run), folder / f"trainer-{of_run}-{chosen}"
    out = folder / of_run / str(chosen)
    written(of, trainer / "checkpoints", 4)
    write_sealed(trainer / "run.json.copy", of.encode())  # as where the file itself was damaged
    template = Path("additional_chat_templates") / "tool_use.jinja"  # as transformers saves it
    (trainer / "tokenizer" / template).parent.mkdir(parents=True, exist_ok=True)
    (trainer / "tokenizer" / template).write_text("{{ messages }}")
    options = ["--dtype", chosen] if chosen is not None else []
    done = CliRunner().invoke(export, ["--state-dir", str(trainer), "--out", str(out), *options], standalone_mode=False)
    assert done.return_value == 0, done.output
    assert (out / template).read_text() == "{{ messages }}"
    model = AutoModelForCausalLM.from_pretrained(out)
    return dict(model.named_parameters())


def test_the_command_and_run_toml_allow_the_same() -> None:
    [dtype] = [option for option in export.params if option.name == "dtype"]
    assert isinstance(dtype.type, click.Choice)
    assert tuple(dtype.type.choices) == EXPORT_DTYPES == tuple(SIZES)


def test_the_disk_needed_follows_the_dtype(tmp_path: Path) -> None:
    model_in(tmp_path, torch.bfloat16)
    planned(tmp_path)
    config = load(tmp_path / "RUN.toml")
    whole, half = (disk_needs(manifest(export_dtype=name), config).export_bytes for name in ("float32", "bfloat16"))
    assert whole == 2 * half
