"""Parts of a stage of a module that are computed again: where they are divided, the bits, and what they keep."""

from __future__ import annotations

import itertools

import pytest
import torch

from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.graphs.parts import part_edges
from swarmflow.compute.graphs.stage import GraphStage
from swarmflow.compute.grouped_stage import GraphInput
from swarmflow.compute.runner import StageRunner, largest_block_bytes
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
    edges = part_edges(graph, 0, model.operators)
    assert edges[0] == 0
    assert edges[-1] == model.operators
    assert list(edges) == sorted(set(edges))
    for each in model.parameters:
        assert len({sum(edge <= use for edge in edges) for use in each.uses}) == 1, "a parameter is in one part"
    stage = GraphStage(graph, model, (), 0, torch.device("cpu"), None)
    stage.set_values(graph.values)
    entered, runner = GraphInput(None, batch_of(IMAGES)), StageRunner(stage)
    whole, largest = runner.activation_bytes(entered), largest_block_bytes(runner, entered)
    assert whole / (len(edges) - 1) <= largest < 0.7 * whole
    stage.block_recompute.on = True
    crossing = sum(4 * model.crossing[edge] for edge in edges[1:-1])
    given = sum(tensor.nbytes for tensor in entered.batch.values())
    assert crossing <= runner.activation_bytes(entered) <= crossing + given + 64 < 0.6 * whole


def test_a_long_stage_has_many_parts_and_what_is_infinite_within_it_fails_no_careful_step() -> None:
    graph, model = captured("deep", {"layers": 80}, VECTORS)
    stage = GraphStage(graph, model, (), 0, torch.device("cpu"), None)
    stage.set_values(graph.values)
    edges, runner = part_edges(graph, 0, model.operators), StageRunner(stage)
    assert max(high - low for low, high in itertools.pairwise(edges)) < 0.2 * model.operators
    entered = GraphInput(None, batch_of(VECTORS))
    [loss, again] = [_loss(runner, entered, careful=careful) for careful in (False, True)]
    assert loss == again
    with torch.no_grad():
        next(values for name, values, _ in stage.named_parameters() if name == "layers.3.bias").fill_(torch.nan)
    with pytest.raises(NotFiniteError, match=f"operators 0 to {model.operators - 1}"):
        _loss(runner, entered, careful=True)


def _loss(runner: StageRunner, entered: GraphInput, *, careful: bool) -> float:
    runner.begin(0, careful)
    return runner.loss(0, entered, torch.empty(0))[0]
