"""What a run will need on the disk, against what it writes there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swarmflow.config import RunConfig
from swarmflow.runtime.operations.exporting import export_checkpoint
from tests.runtime.manifests import manifest
from tests.runtime.test_copy_keeper import written
from tests.trainers.test_data import configured
from trainers.needs import DiskNeeds, disk_needs, shortfalls


def config(steps: int = 100, every: int = 10, export_every: int | None = None, keep: int = 2) -> RunConfig:
    made = configured(path="text")
    run = replace(made.run, export_every=export_every, keep_exports=keep)
    return replace(made, run=run, train=replace(made.train, steps=steps, checkpoint_every=every))


def test_the_sizes_are_those_of_the_files_that_are_written(tmp_path: Path) -> None:
    of = manifest()
    needs = disk_needs(of, config())
    checkpoint = written(of, tmp_path, 4)
    files = [path for path in checkpoint.path.iterdir() if path.suffix == ".safetensors"]
    assert needs.checkpoint_bytes == sum(path.stat().st_size for path in files)
    export_checkpoint(of, checkpoint, tmp_path / "final", lambda folder: None)
    exported = sum(path.stat().st_size for path in (tmp_path / "final").iterdir())
    assert needs.export_bytes == pytest.approx(exported, rel=0.2), "headers are much of a tiny model"
    assert needs.state_bytes == 3 * needs.checkpoint_bytes


@pytest.mark.parametrize(
    ("changes", "exports"),
    [
        ({}, 2 + 2),
        ({"keep": 0}, 10 + 2),
        ({"keep": 5, "export_every": 50}, 2 + 2),
        ({"export_every": 0}, 2),
        ({"steps": 5}, 2),
    ],
)
def test_exports_are_counted_as_they_are_kept(changes: dict[str, int], exports: int) -> None:
    assert disk_needs(manifest(), config(**changes)).exports == exports


def test_a_disk_that_is_too_small_is_named_with_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = DiskNeeds(10**9, 2 * 10**9, 3, 4)
    monkeypatch.setattr("swarmflow.files.shutil.disk_usage", _free(10 * 10**9))
    [line] = shortfalls(needs, tmp_path / "state" / "checkpoints", tmp_path / "out")
    assert "may take 11.0 GB more" in line
    assert "make 1.0 GB free" in line
    monkeypatch.setattr("swarmflow.files.shutil.disk_usage", _free(11 * 10**9))
    assert shortfalls(needs, tmp_path / "state" / "checkpoints", tmp_path / "out") == []


def test_what_a_run_has_written_already_counts_as_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = manifest()
    needs = disk_needs(of, config(export_every=0))
    written(of, tmp_path / "state" / "checkpoints", 4)
    left = needs.state_bytes - needs.checkpoint_bytes + needs.output_bytes
    monkeypatch.setattr("swarmflow.files.shutil.disk_usage", _free(left))
    assert shortfalls(needs, tmp_path / "state" / "checkpoints", tmp_path / "out") == []
    monkeypatch.setattr("swarmflow.files.shutil.disk_usage", _free(left - 10**6))
    assert len(shortfalls(needs, tmp_path / "state" / "checkpoints", tmp_path / "out")) == 1


def _free(size_bytes: int) -> Callable[[Path], object]:
    usage = shutil.disk_usage("/")
    return lambda path: usage._replace(free=size_bytes)
