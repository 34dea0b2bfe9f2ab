"""A stage of an exported module: the operators between two cuts, with a boundary of named tensors, packed into one.

A tensor that an operator of a later stage needs travels through the stages between. The packed boundary is one fp32
tensor [1, n], so that codecs, the journal and repairs treat it as any other.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from swarmflow.compute.block_recompute import BlockRecompute
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.exact import FixedPoint
from swarmflow.compute.graphs.calls import target_of
from swarmflow.compute.graphs.capture import OperatorGraph
from swarmflow.compute.graphs.casting import is_mixed_norm
from swarmflow.compute.graphs.description import GraphModel
from swarmflow.compute.graphs.dropping import MaskedDropout, is_drop
from swarmflow.compute.graphs.parts import part_edges
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
        edges = part_edges(graph, first, stop)
        parts = [placement.part(low, high, last=self.last and high == stop) for low, high in itertools.pairwise(edges)]
        self._given = placement.given(dict.fromkeys(node for part in parts for node in part.given))
        self._bf16_only = frozenset(model.bf16_only)
        # One unit: what leaves a part may be infinite, as what a softmax takes is, and only what leaves a stage not.
        self._parts = _Parts(parts)
        name = f"operators {first} to {stop - 1}"
        self.units: dict[str, nn.Module] = {name: self._parts}
        self.order = [name]
        self.block_names = (name,)
        self.block_recompute = BlockRecompute(enumerate(self._parts.parts), self._again)

    @property
    def dropout(self) -> bool:
        """Whether training drops anything, and so needs a key to draw from."""
        return self.drops

    def enter(self, x: StageInput) -> tuple[Tensor | None, StageInput]:
        """Return the boundary as autograd leaf, None on stage 0, and what `trunk` takes."""
        assert isinstance(x, GraphInput), "a stage of a module"
        batch = {name: x.batch[name].to(self.device) for name in self._given.batch}
        if x.boundary is None:
            return None, GraphInput(None, batch)
        leaf = x.boundary.to(self.device).detach().requires_grad_()
        return leaf, GraphInput(leaf, batch)

    def rescaled(self, leaf: Tensor, factor: float) -> Tensor:
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
        outputs = self._parts(values, self._given.of(x.batch))
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

    def is_bf16_only(self, unit: str, slot: TensorSlot) -> bool:
        """Return whether every operator of the module takes a parameter from a cast to bf16."""
        return slot.name in self._bf16_only

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
class _Given:
    """What operators of a stage need of the batch: its tensors, and what follows from them and from constants alone.

    It is computed once a pass, whatever the parts of the stage are. batch: the names of the tensors that this takes.
    """

    module: fx.GraphModule
    nodes: tuple[fx.Node, ...]
    batch: tuple[str, ...]

    def of(self, batch: Mapping[str, Tensor]) -> dict[fx.Node, Any]:
        """Return the values of the nodes."""
        return dict(zip(self.nodes, self.module(*(batch[name] for name in self.batch)), strict=True))


@dataclass(frozen=True)
class _Part:
    """Some operators of a stage. given: what they need of the batch."""

    module: fx.GraphModule
    given: tuple[fx.Node, ...]


class _Parts(nn.Module):
    """All operators of a stage, part by part."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(part.module for part in parts)
        self._given = [part.given for part in parts]

    def forward(self, values: Sequence[Tensor], given: Mapping[fx.Node, Any]) -> tuple[Tensor, ...]:
        """Return what leaves the stage, of what enters it and what follows from the batch alone."""
        for module, nodes in zip(self.parts, self._given, strict=True):
            values = module(*values, *(given[node] for node in nodes))
        return tuple(values)


class _Placement:
    """Makes modules of ranges of operators."""

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

        It takes the incoming tensors, and then what is given, and returns a tuple: the outgoing tensors, or the loss.
        """
        graph, copies = self._graph, self._copies()
        operators = graph.operators[first:stop]
        used = dict.fromkeys(each for node in operators for each in node.all_input_nodes)
        given = tuple(node for node in (*graph.inputs, *graph.others) if node in used)
        for node in (*graph.live(first), *given):
            copies.take(node)
        for node, tensor in self._constants.items():
            if node in used:
                copies.hold(node, nn.Buffer(tensor))
        casts = {node: parameter for node, parameter in graph.casts.items() if node in used}
        held = {node for node in used if node in graph.parameters}.union(casts.values())
        for node, name in graph.parameters.items():
            if node in held:
                copies.hold(node, self._parameters[name])
        for node, parameter in casts.items():
            copies.cast(node, parameter)
        for node in operators:
            copies.call(node)
        return _Part(copies.module([graph.loss] if last else graph.live(stop)), given)

    def given(self, nodes: Iterable[fx.Node]) -> _Given:
        """Return what computes these nodes, which no operator does."""
        graph, copies, wanted = self._graph, self._copies(), tuple(nodes)
        needed = frozenset[fx.Node]().union(*(graph.given(node) for node in wanted))
        batch = [node for node in graph.inputs if node in needed]
        for node in batch:
            copies.take(node)
        for node, tensor in self._constants.items():
            if node in needed:
                copies.hold(node, nn.Buffer(tensor))
        for node in graph.others:
            if node in needed:
                copies.call(node)
        return _Given(copies.module(wanted), wanted, tuple(graph.inputs[node].name for node in batch))

    def _copies(self) -> _Copies:
        return _Copies(self._device, self._key)


class _Copies:
    """Makes a module of copies of some nodes of the whole graph."""

    def __init__(self, device: torch.device, key: Callable[[], DrawKey | None]) -> None:
        self._device = device
        self._key = key
        self._root = nn.Module()
        self._made = fx.Graph()
        self._found: dict[fx.Node, fx.Node] = {}

    def take(self, node: fx.Node) -> None:
        """Have the module take the value of a node."""
        self._found[node] = self._made.placeholder(f"taken_{len(self._found)}")

    def hold(self, node: fx.Node, tensor: nn.Parameter | nn.Buffer) -> None:
        """Have the module hold the value of a node."""
        name = f"held_{len(self._found)}"
        setattr(self._root, name, tensor)
        self._found[node] = self._made.get_attr(name)

    def cast(self, node: fx.Node, parameter: fx.Node) -> None:
        """Add the cast of a parameter. It is none where the parameter has a copy in this dtype (`HalfWeights`)."""
        args = self._found[parameter], torch.bfloat16
        self._found[node] = self._made.call_function(torch.ops.aten.to.dtype, args)

    def call(self, node: fx.Node) -> None:
        """Add a call of an operator."""
        if is_drop(node):
            name = f"drop_{len(self._found)}"
            self._root.add_module(name, MaskedDropout.of(node, self._key))
            self._found[node] = self._made.call_module(name, (self._found[node.all_input_nodes[0]],))
            return
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: self._found[each])
        args, kwargs = pytree.tree_map_only(torch.device, lambda device: self._device, (args, kwargs))
        target = target_of(node)
        if is_mixed_norm(node) and self._device.type != "cpu":
            args = (self._made.call_function(torch.ops.aten.to.dtype, (args[0], torch.float32)), *args[1:])
            found = self._made.call_function(target, args, dict(kwargs))
            self._found[node] = self._made.call_function(torch.ops.aten.to.dtype, (found, torch.bfloat16))
            return
        self._found[node] = self._made.call_function(target, args, dict(kwargs))

    def module(self, outputs: Iterable[fx.Node]) -> fx.GraphModule:
        """Return the module, which returns a tuple of the values of these nodes."""
        self._made.output(tuple(self._found[node] for node in outputs))
        return fx.GraphModule(self._root, self._made)
