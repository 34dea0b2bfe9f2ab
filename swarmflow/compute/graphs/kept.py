"""What the operators of a graph keep for their backward passes, so that the memory of any stage of it is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from swarmflow.compute.graphs.calls import run
from swarmflow.compute.graphs.capture import OperatorGraph
from swarmflow.compute.graphs.description import GraphModel

_BOUNDARY_BYTES = torch.float32.itemsize  # of an element that crosses into a stage


@dataclass(frozen=True, eq=False)
class KeptMemory:
    """A piece of memory that autograd keeps.

    made_by: the operator whose result it is first; -1: none's. crosses: a stage gets it as it is over a boundary; what
    is of another dtype than fp32 it has to keep a copy of.
    """

    size_bytes: int
    made_by: int
    crosses: bool


@dataclass(frozen=True)
class KeptByOperators:
    """What a graph keeps of one microbatch. of: each operator. crossing: as in `GraphModel`."""

    of: Sequence[Sequence[KeptMemory]]
    crossing: Sequence[int]

    def from_operator(self, first: int) -> list[int]:
        """Return the bytes that a stage from this operator on keeps: of none, of one operator, of two, ...

        As `StageRunner.activation_bytes`: what enters the stage, and each other piece of memory once.
        """
        entered = _BOUNDARY_BYTES * self.crossing[first] if first else 0
        seen: set[KeptMemory] = set()
        found = [0]
        for pieces in self.of[first:]:
            more = 0
            for piece in pieces:
                if piece not in seen and not (piece.crosses and 0 <= piece.made_by < first):
                    seen.add(piece)
                    more += piece.size_bytes
            found.append(more)
        return [entered + kept_bytes for kept_bytes in itertools.accumulate(found)]


@torch.enable_grad()
def measure_kept(graph: OperatorGraph, model: GraphModel, batch: Mapping[str, Tensor]) -> KeptByOperators:
    """Run every operator once with autograd, and note what it keeps beside the parameters.

    A cast of a parameter to bf16 counts where a peer has no copy of it anyway: that of model.bf16_only.
    """
    parameters = {name: value.detach().requires_grad_() for name, value in graph.values.items()}
    watch = _Watch(graph, model, [*batch.values(), *graph.constants.values()], [*parameters.values()])
    run(graph, parameters, batch, watch.call)
    return KeptByOperators(watch.of, graph.crossing)


class _Watch:
    """Notes what each operator keeps while all are run."""

    def __init__(
        self, graph: OperatorGraph, model: GraphModel, given: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> None:
        self.of: list[list[KeptMemory]] = [[] for _ in graph.operators]
        self._graph = graph
        copied = (node for node, each in graph.casts.items() if graph.parameters[each] in model.bf16_only)
        self._copied = frozenset(copied)
        self._weights = set(map(_address, parameters))
        self._made_by = dict.fromkeys(map(_address, given), -1)
        self._pieces: dict[int, KeptMemory] = {}  # by their addresses
        self._alive: list[object] = []  # an address that is freed could be used again

    def call(self, node: fx.Node, made: Callable[[], Any]) -> object:
        """Return the result of a node."""
        number = self._graph.position.get(node, -1)
        with saved_tensors_hooks(partial(self._keep, number), lambda nothing: nothing):
            value = made()
        self._alive.append(value)
        for each in pytree.tree_leaves(value):
            if isinstance(each, Tensor):
                if node in self._copied:
                    self._weights.add(_address(each))
                self._made_by.setdefault(_address(each), number)
        return value

    def _keep(self, number: int, tensor: Tensor) -> None:
        """Note that an operator keeps a tensor; it is handed back by nobody, so that the graph goes."""
        address, storage = _address(tensor), tensor.untyped_storage()
        self._alive.append(storage)
        if number < 0 or address in self._weights:
            return
        made_by = self._made_by.setdefault(address, number)
        new = KeptMemory(storage.nbytes(), made_by, tensor.dtype is torch.float32)
        piece = self._pieces.setdefault(address, new)
        if piece not in self.of[number]:
            self.of[number].append(piece)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
