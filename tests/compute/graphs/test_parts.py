"""Parts of a stage of a module that are computed again: where they are divided, the bits, and what they keep."""

from __future__ import annotations

import itertools

import pytest
import torch

from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.graphs.parts import divided
from swarmflow.compute.graphs.stage import GraphStage
from swarmflow.compute.grouped_stage import GraphInput
from swarmflow.compute.runner import StageRunner
from tests.compute.graphs.test_graphs import IMAGES, SEED, VECTORS, batch_of, captured, cuts_of, in_stages


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(2, 50))])
def test_a_pass_that_computes_its_parts_again_has_the_bits_of_one_that_keeps_them(seed: int, precision: str) -> None:
    graph, model = captured("random_graph", {"seed": seed, "operators": 14}, VECTORS, precision)
    batch = batch_of(VECTORS)
    for cut in ((), *cuts_of(model, 2, 2), *cuts_of(model, 3, 2)):
        loss, gradients = in_stages(graph, model, cut, batch, precision=precision)
        again, found = in_stages(graph, model, cut, batch, precision=precision, recompute=True)
        assert again == loss
        assert all(torch.equal(found[name], gradient) for name, gradient in gradients.items())


def test_a_part_drops_again_what_it_has_dropped() -> None:
    graph, model = captured("odd", {"kind": "dropout"}, VECTORS, dropout=True)
    batch, key = batch_of(VECTORS), DrawKey(SEED, 1, 2)
    [cut] = cuts_of(model, 2, 1)
    loss, gradients = in_stages(graph, model, cut, batch, key=key)
    again, found = in_stages(graph, model, cut, batch, key=key, recompute=True)
    assert again == loss
    assert all(torch.equal(found[name], gradient) for name, gradient in gradients.items())


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_parts_are_divided_so_that_little_is_kept(kind: str) -> None:
    graph, model = captured("of_transformers", {"kind": kind}, IMAGES)
    edges, largest = divided(graph, 0, model.operators)
    assert edges[0] == 0
    assert edges[-1] == model.operators
    assert list(edges) == sorted(set(edges))
    assert 1 / (len(edges) - 1) <= largest < 1
    for each in model.parameters:
        assert len({sum(edge <= use for edge in edges) for use in each.uses}) == 1, "a parameter is in one part"
    stage = GraphStage(graph, model, (), 0, torch.device("cpu"), None)
    stage.set_values(graph.values)
    entered, runner = GraphInput(None, batch_of(IMAGES)), StageRunner(stage)
    whole = runner.activation_bytes(entered)
    stage.block_recompute.on = True
    crossing = sum(4 * model.crossing[edge] for edge in edges[1:-1])
    given = sum(tensor.nbytes for tensor in entered.batch.values())
    assert crossing <= runner.activation_bytes(entered) <= crossing + given + 64 < 0.6 * whole
    parts = [graph.operators[low:high] for low, high in itertools.pairwise(edges)]
    assert sum(map(len, parts)) == model.operators
