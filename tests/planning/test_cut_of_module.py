"""`swarmflow plan --cut` for a run of a module: its operators are divided for machines of unlike memory and speed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from swarmflow.cli import main
from swarmflow.compute.demands import TEMPORARY, graph_demands
from swarmflow.config import load
from swarmflow.preparation.graph_check import check_graph
from swarmflow.preparation.manifests import graph_manifest_of
from trainers.plan import first_batch

HERE = "tests.planning.test_cut_of_module"
LAYERS, WIDTH, ITEMS = 12, 512, 64
RUN = f"""
[run]
output = "out"
[model]
module = "{HERE}:{{function}}"
stages = 2
[data]
path = "records.jsonl"
collate = "{HERE}:collate"
[optimizer]
name = "sgd"
[train]
microbatches = 2
microbatch_sequences = {ITEMS}
"""


class Chain(nn.Module):
    """Layers of one size, each of which adds to what enters it. tied: the last one has the weights of the first."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.enter = nn.Linear(4, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.leave = nn.Linear(WIDTH, 1)
        if tied:
            self.layers[-1].weight = self.layers[0].weight

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the losses of the items."""
        hidden = self.enter(x)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        loss: Tensor = self.leave(hidden).square().sum()
        return loss


def chain() -> nn.Module:
    """A network of like layers."""
    return Chain(tied=False)


def tied_chain() -> nn.Module:
    """A network whose ends share weights."""
    return Chain(tied=True)


def collate(records: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch of some records."""
    return {"x": torch.tensor([record["x"] for record in records], dtype=torch.float32)}


def run_toml(folder: Path, function: str = "chain") -> Path:
    records = [json.dumps({"x": [number % 3, number % 5, 1, 2]}) for number in range(2 * ITEMS)]
    (folder / "records.jsonl").write_text("\n".join(records))
    path = folder / "RUN.toml"
    path.write_text(RUN.format(function=function))
    return path


@pytest.mark.parametrize("function", ["chain", "tied_chain"])
def test_a_module_is_cut_for_the_machines_that_are_named(
    function: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, file = run_toml(tmp_path, function), tmp_path / "cut.json"
    machines = ["--machines", "1x50MB@3", "--machines", "1x50MB", "--json", str(file)]
    assert main(["plan", str(path), "--cut", *machines, "--stages", "2"]) == 0
    found, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert f"in RUN.toml: cut = {found['cut']}" in printed
    fast = next(stage for stage in found["stages"] if stage["machines"]["1x50MB@3"])
    slow = next(stage for stage in found["stages"] if stage["machines"]["1x50MB"])
    assert fast["operators"] > 1.5 * slow["operators"], "three times as much, but for what measuring is off"
    assert found["gain"] > 1.15
    # What a trainer finds out of the stages themselves is the oracle.
    path.write_text(path.read_text().replace("stages = 2", f"cut = {found['cut']}"))
    config = load(path)
    examined = check_graph(config, first_batch(config))
    assert list(examined.cut) == found["cut"]
    edges = itertools.pairwise((0, *examined.cut, examined.model.operators))
    assert [(stage["first_operator"], stage["operators"]) for stage in found["stages"]] == [
        (low, high - low) for low, high in edges
    ]
    demands = graph_demands(graph_manifest_of(config, examined, "", ""), examined.activation_bytes)
    needed = [one.memory_bytes + (1 + TEMPORARY) * one.microbatch_bytes for one in demands]
    assert [stage["memory_bytes"] for stage in found["stages"]] == needed
    assert max(needed) <= 50e6 < sum(needed)


@pytest.mark.parametrize(
    ("machines", "line"),
    [
        (["--machines", "2x1MB"], "no machine can hold operator"),
        (["--machines", "2x30MB"], "the machines cannot hold the model in any number of stages however it is cut"),
        (["--machines", "99x1GB", "--stages", "99"], "stages need as many blocks, or parts that a cut can separate"),
    ],
)
def test_machines_that_cannot_hold_a_module(
    machines: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(run_toml(tmp_path)), "--cut", *machines]) == 2
    assert line in capsys.readouterr().err


def test_a_module_without_data_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_toml(tmp_path)
    (tmp_path / "records.jsonl").unlink()
    assert main(["plan", str(path), "--cut", "--machines", "2x1GB"]) == 1
    assert "records.jsonl" in capsys.readouterr().err
