"""What an export puts together: adapters with the weights of their run alone, and all files of a tokenizer."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from swarmflow.compute.adapters import with_adapters
from swarmflow.compute.base_weights import base_roots
from swarmflow.errors import CheckpointError, NetworkError
from swarmflow.files import write_sealed
from swarmflow.finetuning import Lora
from swarmflow.runtime.operations.export_command import export_folder, write_tokenizer
from tests.compute.finetuned import save_base
from tests.compute.models import config_of
from tests.runtime.manifests import manifest
from tests.runtime.test_copy_keeper import written


def test_adapters_are_merged_into_no_other_weights(tmp_path: Path) -> None:
    config = config_of("llama")
    base = save_base(config, tmp_path / "base")
    other = Path(shutil.copytree(base, tmp_path / "other"))
    with (other / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    of = manifest(model=with_adapters(config, Lora(rank=2, alpha=4)))
    of = replace(of, base=base_roots(of, base))
    trainer, out = tmp_path / "trainer", tmp_path / "merged"
    written(of, trainer / "checkpoints", 4)
    write_sealed(trainer / "run.json", of.encode())
    with pytest.raises(CheckpointError, match="other: it has other weights than those that the run began with"):
        export_folder(trainer, out, base=other)
    assert not out.exists()
    assert export_folder(trainer, out, base=base) == 4
    assert (out / "model.safetensors").is_file()


def test_a_tokenizer_has_chat_templates_in_a_folder_of_their_own(tmp_path: Path) -> None:
    files = {"tokenizer.json": b"{}", "additional_chat_templates/tool_use.jinja": b"x"}
    write_tokenizer(files, tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == set(files)


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", ".x", "", "additional_chat_templates/../x", "a\0"])
def test_a_leader_writes_nowhere_else(name: str, tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="impossible file names"):
        write_tokenizer({name: b""}, tmp_path)
    assert list(tmp_path.iterdir()) == []
