"""A stage of an exported module: the operators between two cuts, with a boundary of named tensors, packed into one.

A tensor that an operator of a later stage needs travels through the stages between. The packed boundary is one fp32
tensor [1, n], so that codecs, the journal and repairs treat it as any other.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from swarmflow.compute.block_recompute import BlockRecompute
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.exact import FixedPoint
from swarmflow.compute.graphs.capture import OperatorGraph
from swarmflow.compute.graphs.description import GraphModel
from swarmflow.compute.graphs.dropping import MaskedDropout, is_drop
from swarmflow.compute.graphs.parts import divided
from swarmflow.compute.grid import Blockwise
from swarmflow.compute.grouped_stage import GraphInput, GroupedStage, StageInput
from swarmflow.compute.layout_types import TensorSlot


class GraphStage(GroupedStage):
    """The operators from cut[stage - 1] to cut[stage] of a graph, on one device, with zeros for parameters."""

    autocast = False

    def __init__(
        self,
        graph: OperatorGraph,
        model: GraphModel,
        cut: Sequence[int],
        stage: int,
        device: torch.device,
        rounding: FixedPoint | Blockwise | None,
        align: int = 1,
        *,
        in_host_memory: bool = False,
        drops: bool = False,
    ) -> None:
        """rounding: how gradients are rounded before they add up. align: as in `stage_layout`.

        drops: whether the dropouts of the graph, if it has some, drop anything in training.
        """
        super().__init__(model.layout(cut, stage, align), device, rounding, in_host_memory=in_host_memory)
        self.items = model.items
        first, stop = (0, *cut)[stage], (*cut, model.operators)[stage]
        incoming, before = graph.live(first), (0, 0, *cut)[stage]
        self._incoming = [_Shape.of(node, fresh=graph.position[node] >= before) for node in incoming]
        self.drops = drops
        self._draw: DrawKey | None = None
        parameters = {entry.name: group.parameter(entry) for group in self.groups.values() for entry in group.entries}
        placement = _Placement(graph, device, parameters, lambda: self._draw)
        edges, largest = divided(graph, first, stop)
        self._parts = [
            placement.part(low, high, last=self.last and high == stop) for low, high in itertools.pairwise(edges)
        ]
        self._batch = dict.fromkeys(name for part in self._parts for name in part.batch)
        self._halved = frozenset(model.halved)
        names = [f"operators {low} to {high - 1}" for low, high in itertools.pairwise(edges)]
        self.units: dict[str, nn.Module] = {name: part.module for name, part in zip(names, self._parts, strict=True)}
        self.order = names
        self.block_names = tuple(names)
        self.block_recompute = BlockRecompute(enumerate(self.units.values()), self._again, largest)

    @property
    def dropout(self) -> bool:
        """Whether training drops anything, and so needs a key to draw from."""
        return self.drops

    def enter(self, x: StageInput) -> tuple[Tensor | None, StageInput]:
        """Return the boundary as autograd leaf, None on stage 0, and what `trunk` takes."""
        assert isinstance(x, GraphInput), "a stage of a module"
        batch = {name: x.batch[name].to(self.device) for name in self._batch}
        if x.boundary is None:
            return None, GraphInput(None, batch)
        leaf = x.boundary.to(self.device).detach().requires_grad_()
        return leaf, GraphInput(leaf, batch)

    def enlarged(self, leaf: Tensor, factor: float) -> Tensor:
        """As of any stage. What came through the stage before was multiplied there, or in a stage before that one."""
        factors = [leaf.new_full((each.elements,), factor if each.fresh else 1.0) for each in self._incoming]
        return leaf * (leaf != 0) * torch.cat(factors)

    def trunk(self, x: StageInput, draw: DrawKey | None = None) -> Tensor:
        """Return the boundary after this stage, fp32 [1, n]; on the last stage the loss, fp32 [1]."""
        assert isinstance(x, GraphInput), "a stage of a module"
        values: list[Tensor] = []
        if x.boundary is not None:
            flat, start = x.boundary[0], 0
            for shape in self._incoming:
                values.append(flat[start : start + shape.elements].view(shape.shape).to(shape.dtype))
                start += shape.elements
        self._draw = draw if self.drops else None
        outputs: Sequence[Tensor] = values
        for part in self._parts:
            outputs = part.module(*outputs, *(x.batch[name] for name in part.batch))
        if self.last:
            [loss] = outputs
            assert isinstance(loss, Tensor), "a graph ends in its loss"
            return loss
        return torch.cat([output.reshape(-1).float() for output in outputs]).unsqueeze(0)

    def pieces(self, hidden: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the loss of the microbatch in one piece."""
        yield hidden, targets

    def head_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses of the microbatch, a scalar."""
        return hidden.sum()

    def count(self, targets: Tensor) -> int:
        """Return the items of the microbatch."""
        return self.items

    def is_halved(self, unit: str, slot: TensorSlot) -> bool:
        """Return whether every operator of the module takes a parameter from a cast to bf16."""
        return slot.name in self._halved

    def _again(self, part: int) -> contextlib.AbstractContextManager[None]:
        """Return the context in which a part is computed once more for the backward pass of this forward pass."""
        return self._drawing(self._draw)

    @contextlib.contextmanager
    def _drawing(self, draw: DrawKey | None) -> Iterator[None]:
        before, self._draw = self._draw, draw
        try:
            yield
        finally:
            self._draw = before

    @torch.no_grad()
    def set_values(self, values: dict[str, Tensor]) -> None:
        """Set the parameters, by their names in the module."""
        for name, own, _ in self.named_parameters():
            own.copy_(values[name])


@dataclass(frozen=True)
class _Shape:
    """A tensor at a boundary. fresh: the stage before it has computed it."""

    shape: tuple[int, ...]
    elements: int
    dtype: torch.dtype
    fresh: bool

    @classmethod
    def of(cls, node: fx.Node, *, fresh: bool) -> _Shape:
        value = node.meta["val"]
        return cls(tuple(value.shape), value.numel(), value.dtype, fresh)


@dataclass(frozen=True)
class _Part:
    """Some operators of a stage. batch: the names of the tensors of the batch that they need."""

    module: fx.GraphModule
    batch: tuple[str, ...]


class _Placement:
    """Makes modules of ranges of operators. Values that are not tensors of the graph are the same in all of them."""

    def __init__(
        self,
        graph: OperatorGraph,
        device: torch.device,
        parameters: Mapping[str, nn.Parameter],
        key: Callable[[], DrawKey | None],
    ) -> None:
        """parameters: by their names in the module. key: as in `MaskedDropout`."""
        self._graph = graph
        self._device = device
        self._parameters = parameters
        self._key = key
        self._constants = {node: tensor.to(device) for node, tensor in graph.constants.items()}

    def part(self, first: int, stop: int, *, last: bool) -> _Part:
        """Return the module of the operators `first` to `stop`.

        It takes the incoming tensors, and then those of the batch, and returns a tuple: the outgoing tensors, or the
        loss.
        """
        graph, made, root = self._graph, fx.Graph(), nn.Module()
        copies = _Copies(root, made, self._device, self._key)
        operators = graph.operators[first:stop]
        for node in graph.live(first):
            copies[node] = made.placeholder(f"incoming_{len(copies)}")
        given = frozenset[fx.Node]().union(*(graph.given(node) for node in operators))
        batch = [node for node in graph.inputs if node in given]
        for node in batch:
            copies[node] = made.placeholder(f"batch_{len(copies)}")
        for node, tensor in self._constants.items():
            if node in given:
                root.register_buffer(f"constant_{len(copies)}", tensor)
                copies[node] = made.get_attr(f"constant_{len(copies)}")
        for node, name in graph.parameters.items():
            if name in self._parameters and node in given:
                root.register_parameter(f"parameter_{len(copies)}", self._parameters[name])
                copies[node] = made.get_attr(f"parameter_{len(copies)}")
        for node in (each for each in graph.casts if each in given):
            # Not `_to_copy`: what has a copy in this dtype (`HalfWeights`) is not copied again.
            copies[node] = made.call_function(torch.ops.aten.to.dtype, (copies[graph.casts[node]], torch.bfloat16))
        for node in [*(each for each in graph.others if each in given), *operators]:
            copies.add(node)
        outgoing = [graph.loss] if last else graph.live(stop)
        made.output(tuple(copies[node] for node in outgoing))
        return _Part(fx.GraphModule(root, made), tuple(graph.inputs[node].name for node in batch))


class _Copies(dict[fx.Node, fx.Node]):
    """Nodes of the whole graph -> those of a part."""

    def __init__(
        self, root: nn.Module, made: fx.Graph, device: torch.device, key: Callable[[], DrawKey | None]
    ) -> None:
        super().__init__()
        self._root = root
        self._made = made
        self._device = device
        self._key = key

    def add(self, node: fx.Node) -> None:
        """Add a call of an operator."""
        if is_drop(node):
            name = f"drop_{len(self)}"
            self._root.add_module(name, MaskedDropout.of(node, self._key))
            self[node] = self._made.call_module(name, (self[node.all_input_nodes[0]],))
            return
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: self[each])
        args, kwargs = pytree.tree_map_only(torch.device, lambda device: self._device, (args, kwargs))
        assert callable(node.target), "an operator, not a method by its name"
        # A tensor that came over a boundary is contiguous, and so may be what an operator makes of it: a view that was
        # possible in the whole graph may not be here.
        target = torch.ops.aten.reshape.default if node.target is torch.ops.aten.view.default else node.target
        self[node] = self._made.call_function(target, args, dict(kwargs))
