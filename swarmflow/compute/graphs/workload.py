"""What each operator of a graph takes: seconds, floating-point operations, bytes (FusionLLM, section 3.5)."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import FlopCounterMode

from swarmflow.compute.graphs.calls import run
from swarmflow.compute.graphs.capture import OperatorGraph, where
from swarmflow.compute.graphs.casting import casting
from swarmflow.compute.graphs.dropping import numbered_dropouts, without_dropout
from swarmflow.compute.graphs.user_functions import LossModule

_TRIALS = 3
_BACKWARD = 2.0  # a backward pass takes about twice the forward's time and operations


@dataclass(frozen=True)
class OperatorWorkload:
    """One operator and one microbatch, forward and backward.

    where: the submodule that calls it. shape: of its result.
    """

    name: str
    where: str
    seconds: float
    gigaflops: float
    shape: tuple[int, ...]


@torch.no_grad()
def measure(graph: OperatorGraph, batch: Mapping[str, Tensor]) -> list[OperatorWorkload]:
    """Measure every operator on this machine, with the parameters of version 0."""
    taken = [_seconds(graph, batch) for _ in range(_TRIALS)]
    flops = _flops(graph, batch)
    found = []
    for node in graph.operators:
        value = node.meta.get("val")
        found.append(
            OperatorWorkload(
                str(node.target) if isinstance(node.target, torch._ops.OpOverload) else operator.getitem.__name__,
                where(node),
                (1 + _BACKWARD) * min(trial[node] for trial in taken),
                (1 + _BACKWARD) * 1e-9 * flops[node],
                tuple(value.shape) if isinstance(value, Tensor) else (),
            )
        )
    return found


def _seconds(graph: OperatorGraph, batch: Mapping[str, Tensor]) -> dict[fx.Node, float]:
    seconds: dict[fx.Node, float] = {}

    def timed(node: fx.Node, made: Callable[[], Any]) -> object:
        began = time.perf_counter()
        value = made()
        seconds[node] = time.perf_counter() - began
        return value

    run(graph, graph.values, batch, timed)
    return seconds


def _flops(graph: OperatorGraph, batch: Mapping[str, Tensor]) -> dict[fx.Node, float]:
    flops: dict[fx.Node, float] = {}

    def counted(node: fx.Node, made: Callable[[], Any]) -> object:
        with FlopCounterMode(display=False) as counter:
            value = made()
        flops[node] = float(counter.get_total_flops())
        return value

    run(graph, graph.values, batch, counted)
    return flops


def gradients_of(
    module: LossModule, batch: Mapping[str, Tensor], precision: str = "fp32", *, dropout: bool = False
) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of the uncut module, and the gradients of its parameters by all of their names.

    dropout: whether it is computed as if it dropped. Nothing is dropped.
    """
    module.zero_grad()
    with numbered_dropouts("") if dropout else without_dropout(), casting(precision):
        loss = module(**batch)
    torch.autograd.backward(loss)
    named = module.named_parameters(remove_duplicate=False)
    return float(loss.detach()), {name.removeprefix("module."): p.grad for name, p in named if p.grad is not None}
