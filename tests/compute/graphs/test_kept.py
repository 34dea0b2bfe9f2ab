"""What operators keep of a microbatch, and where a graph is divided: the stages of production are the oracle."""

from __future__ import annotations

import itertools

import pytest
import torch

from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.graphs.capture import OperatorGraph
from swarmflow.compute.graphs.description import BatchTensor, GraphModel
from swarmflow.compute.graphs.kept import measure_kept
from swarmflow.compute.graphs.places import narrow_places
from swarmflow.compute.graphs.stage import GraphStage
from swarmflow.compute.grouped_stage import GraphInput
from swarmflow.compute.runner import StageRunner
from tests.compute.graphs.test_graphs import IMAGES, SEED, SENTENCES, VECTORS, batch_of, captured


def kept_by_stages(
    graph: OperatorGraph, model: GraphModel, cut: tuple[int, ...], inputs: list[BatchTensor], precision: str
) -> list[int]:
    """What each stage keeps, as a peer measures it."""
    batch, draw, found = batch_of(inputs), DrawKey(SEED, 0, 0), list[int]()
    entered = GraphInput(None, batch)
    for number in range(len(cut) + 1):
        stage = GraphStage(graph, model, cut, number, torch.device("cpu"), None, drops=True)
        stage.set_values(graph.values)
        runner = StageRunner(stage, precision)
        found.append(runner.activation_bytes(entered, draw))
        if not stage.last:
            entered = GraphInput(runner.forward(0, entered, draw), batch)
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("function", "config", "inputs"),
    [
        *[("random_graph", {"seed": seed, "operators": 14}, VECTORS) for seed in range(4)],
        ("odd", {"kind": "dropout"}, VECTORS),
        ("of_transformers", {"kind": "resnet"}, IMAGES),
        ("of_transformers", {"kind": "vit"}, IMAGES),
        ("of_transformers", {"kind": "t5"}, SENTENCES),
    ],
)
def test_what_operators_keep_is_what_a_stage_of_them_keeps(
    function: str, config: dict[str, object], inputs: list[BatchTensor], precision: str
) -> None:
    graph, model = captured(function, config, inputs, precision, dropout=True)
    kept = measure_kept(graph, model, batch_of(inputs))
    places = narrow_places(model, [1.0] * model.operators, 12)
    for cut in ((), places[:1], places[-1:], places[:: len(places) // 2]):
        edges = itertools.pairwise((0, *cut, model.operators))
        expected = [kept.from_operator(first)[stop - first] for first, stop in edges]
        # What has crossed is contiguous: a query that was a view makes attention's result another one, of which a copy
        # has to be made.
        within = 0.1 if config.get("kind") == "vit" else 0.0
        assert expected == pytest.approx(kept_by_stages(graph, model, cut, inputs, precision), rel=within)
