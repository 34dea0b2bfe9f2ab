"""How the operators of a graph are called, outside the module that they are of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.graphs.capture import OperatorGraph
from swarmflow.compute.graphs.dropping import MaskedDropout, is_drop

Operator = Callable[..., Any]
_ANY_MICROBATCH = DrawKey(0, 0, 0)


def target_of(node: fx.Node) -> Operator:
    """Return what computes a node.

    A tensor that came over a boundary is contiguous, and so may be what an operator makes of it; and torch may choose
    another kernel of attention than when the graph was exported. A view that was possible there may not be here.
    """
    assert callable(node.target), "an operator, not a method by its name"
    return torch.ops.aten.reshape.default if node.target is torch.ops.aten.view.default else node.target


def run(
    graph: OperatorGraph,
    parameters: Mapping[str, Tensor],
    batch: Mapping[str, Tensor],
    call: Callable[[fx.Node, Callable[[], Any]], Any],
) -> None:
    """Run all nodes, one by one, with the masks of dropouts as a stage draws them.

    parameters: by name. call: makes the result of a node by what it is given.
    """
    values: dict[fx.Node, Any] = {node: parameters[name] for node, name in graph.parameters.items()}
    values |= graph.constants
    values |= {node: batch[spec.name] for node, spec in graph.inputs.items()}
    for node, parameter in graph.casts.items():
        values[node] = call(node, partial(values[parameter].to, torch.bfloat16))
    for node in (*graph.others, *graph.operators):
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        made: Operator = partial(target_of(node), *args, **kwargs)
        if is_drop(node):
            made = partial(MaskedDropout.of(node, lambda: _ANY_MICROBATCH), args[0])
        values[node] = call(node, made)
