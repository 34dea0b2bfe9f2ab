"""Exports a module as a graph of operators in a topological order (FusionLLM, section 3.3: the OP-DAG).

An *operator* is a call whose result depends on parameters. What depends on the batch and on constants alone (masks,
positions) is no operator: every stage that needs it computes it itself, exactly, so it never crosses a boundary.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from swarmflow.compute.codec import FX_STATE
from swarmflow.compute.families import one_line
from swarmflow.compute.flat_tensors import memory_of
from swarmflow.compute.graphs.casting import casting_within
from swarmflow.compute.graphs.description import BatchTensor, GraphModel, GraphParameter
from swarmflow.compute.graphs.dropping import numbered_dropouts, without_dropout
from swarmflow.compute.graphs.user_functions import LossModule, build_module
from swarmflow.errors import ModelError

_PREFIX = "module."  # of LossModule
_GRAD_MODE = torch.ops.higher_order.wrap_with_set_grad_enabled


@dataclass(frozen=True)
class OperatorGraph:
    """A module's graph of operators, and the values that it begins with.

    operators: in the order in which they are numbered. casts: of a parameter to bf16, by autocast -> the parameter;
    no operators, as each stage that needs one computes it itself. others: what is computed from the batch and constants
    alone, in order. parameters, constants, inputs: of the placeholders. values: of the parameters of version 0, by
    name. boundary_dtypes: the dtypes of tensors that a boundary may have.
    """

    name: str
    operators: list[fx.Node]
    casts: dict[fx.Node, fx.Node]
    others: list[fx.Node]
    parameters: dict[fx.Node, str]
    constants: dict[fx.Node, Tensor]
    inputs: dict[fx.Node, BatchTensor]
    loss: fx.Node
    values: dict[str, Tensor]
    boundary_dtypes: frozenset[torch.dtype]

    @cached_property
    def position(self) -> dict[fx.Node, int]:
        """The number of each operator."""
        return {node: number for number, node in enumerate(self.operators)}

    def given(self, node: fx.Node) -> frozenset[fx.Node]:
        """Return what a node needs that no operator computes, itself included if it is such."""
        own = () if node in self.position else (node,)
        return frozenset(own).union(*(self._given[each] for each in node.all_input_nodes if each in self._given))

    @cached_property
    def _given(self) -> dict[fx.Node, frozenset[fx.Node]]:
        """As `given`, of each node that is no operator."""
        found: dict[fx.Node, frozenset[fx.Node]] = {}
        for node in (*self.parameters, *self.constants, *self.inputs, *self.casts, *self.others):
            found[node] = frozenset((node,)).union(*(found[each] for each in node.all_input_nodes))
        return found

    def live(self, position: int) -> list[fx.Node]:
        """Return the operators before this position whose results are needed from it on, in their order."""
        users = set(self.operators[position:])
        return [node for node in self.operators[:position] if any(user in users for user in node.users)]

    @cached_property
    def crossing(self) -> tuple[int, ...]:
        """GraphModel.crossing of this graph."""
        count = len(self.operators)
        elements, other = [0] * (count + 1), [0] * (count + 1)
        for node, made in self.position.items():
            last = max((self.position[user] for user in node.users if user in self.position), default=made)
            value = node.meta.get("val")
            fits = isinstance(value, Tensor) and value.dtype in self.boundary_dtypes
            size = value.numel() if isinstance(value, Tensor) and fits else None
            size = size if isinstance(size, int) else None  # else it depends on values
            for line, amount in ((elements, size or 0), (other, int(size is None))):
                line[made + 1] += amount
                line[last + 1] -= amount
        total, odd, found = 0, 0, []
        for more, others in zip(elements[:count], other[:count], strict=True):
            total, odd = total + more, odd + others
            found.append(-1 if odd else total)
        return tuple(found)

    def describe(self, module: str, config: Mapping[str, Any], items: int) -> GraphModel:
        """Return what the manifest says of this graph."""
        uses: dict[str, list[int]] = {}
        needed: dict[str, int] = {}
        uncast: set[str] = set()
        for node, number in self.position.items():
            for each in node.all_input_nodes:
                name = self.parameters.get(self.casts.get(each, each))
                if name is not None and number not in uses.setdefault(name, []):
                    uses[name].append(number)
                if each in self.parameters:
                    uncast.add(self.parameters[each])
            for each in self.given(node):
                if each in self.inputs:
                    needed[self.inputs[each].name] = number
        inputs = [BatchTensor(i.name, i.shape, i.dtype, needed.get(i.name, -1)) for i in self.inputs.values()]
        parameters = [
            GraphParameter(name, tuple(self.values[name].shape), tuple(uses[name]))
            for name in self.parameters.values()
            if name in uses
        ]
        bf16_only = tuple(each.name for each in parameters if each.name not in uncast)
        return GraphModel(
            module,
            dict(config),
            items,
            tuple(inputs),
            tuple(parameters),
            self.crossing,
            self._digest(list(uses)),
            bf16_only,
        )

    def _digest(self, trained: Iterable[str]) -> str:
        """Name the graph by its operators, their order and arguments, the constants and the first parameters."""
        numbers: dict[fx.Node, str] = {}
        hasher = blake3()
        given = [*self.parameters, *self.constants, *self.inputs]
        for number, node in enumerate([*given, *self.casts, *self.others, *self.operators]):
            numbers[node] = f"%{number}"
        for node in [*self.casts, *self.others, *self.operators]:
            named = node.args, dict(sorted(node.kwargs.items()))
            arguments = fx.map_arg(named, lambda each: _Numbered(numbers[each]))
            hasher.update(f"{numbers[node]} = {node.target} {arguments}\n".encode())
        for name, shape in ((each.name, each.shape) for each in self.inputs.values()):
            hasher.update(f"{name} {shape}\n".encode())
        for tensor in (*self.constants.values(), *(self.values[name] for name in trained)):
            hasher.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
            hasher.update(memory_of(tensor.detach().cpu().contiguous().view(-1)))
        return hasher.hexdigest()[:32]


class _Numbered(str):
    """A node in the text of another one's arguments."""

    def __repr__(self) -> str:
        return str(self)


def capture(
    module: str,
    config: Mapping[str, Any],
    inputs: Sequence[BatchTensor],
    seed: int,
    precision: str = "fp32",
    *,
    dropout: bool = False,
) -> OperatorGraph:
    """Build the user's module and export its graph. Raises ModelError, which names what cannot be exported or cut.

    precision: "bf16" for the casts of torch's autocast on the CPU, which are then in the graph, the same on any device.
    dropout: whether the module's dropouts are in the graph.
    """
    name = f"model.module = {module!r}"
    built = build_module(module, config, seed)
    with casting_within(precision):
        program = _exported(built, inputs, name, dropout=dropout)
    return _graph_of(program, built, inputs, name, precision)


def recapture(model: GraphModel, seed: int, precision: str = "fp32", *, dropout: bool = False) -> OperatorGraph:
    """Return the graph that a manifest describes. Raises ModelError where the module is another one here."""
    graph = capture(model.module, model.module_config, model.inputs, seed, precision, dropout=dropout)
    found = graph.describe(model.module, model.module_config, model.items)
    if found.digest != model.digest or found != model:
        raise ModelError(
            f"model.module = {model.module!r} makes another network here than at the trainer: install the same "
            "versions of its package and of torch; its first parameters may come from torch's own generator alone"
        )
    return graph


def example(inputs: Iterable[BatchTensor]) -> dict[str, Tensor]:
    """Return zeros in the form of a microbatch."""
    return {each.name: torch.zeros(each.shape, dtype=getattr(torch, each.dtype)) for each in inputs}


def _exported(built: LossModule, inputs: Sequence[BatchTensor], name: str, *, dropout: bool) -> ExportedProgram:
    try:
        with FX_STATE, numbered_dropouts(name) if dropout else without_dropout(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own code calls what torch gives up
            program = torch.export.export(built, (), kwargs=example(inputs), strict=False)
            _detach_what_has_no_gradient(program.graph_module)
            # Without operators that write into their arguments.
            functional: ExportedProgram = program.run_decompositions({})
            _copy_without_what_was_there(functional.graph_module.graph)
    except ModelError:
        raise
    except Exception as error:  # torch.export has an error for each thing that it does not take
        raise ModelError(f"{name} cannot be exported as a graph of operators: {one_line(error)}") from error
    signature = functional.graph_signature
    if signature.buffers_to_mutate:
        buffer = next(iter(signature.buffers_to_mutate.values())).removeprefix(_PREFIX)
        raise ModelError(
            f"{name}: its forward writes into the buffer {buffer}, and stages keep none from one to the next"
        )
    if signature.parameters_to_mutate:
        parameter = next(iter(signature.parameters_to_mutate.values())).removeprefix(_PREFIX)
        raise ModelError(f"{name}: its forward writes into the parameter {parameter}, which the optimizer alone may do")
    if signature.user_inputs_to_mutate:
        raise ModelError(f"{name}: its forward writes into its inputs; clone them first")
    return functional


def _detach_what_has_no_gradient(exported: fx.GraphModule) -> None:
    """Put a detach after each part without gradients: the decomposition forgets that it has none."""
    for node in list(exported.graph.nodes):
        if node.target is _GRAD_MODE and node.args[0] is False:
            for output in list(node.users):
                _detach(exported.graph, output)
    exported.recompile()


def _copy_without_what_was_there(graph: fx.Graph) -> None:
    """Make each copy into another tensor a copy of that shape and dtype: torch.export's operator has no gradient.

    And what was there before need not cross a boundary: it may be memory that nothing has written.
    """
    for node in [each for each in graph.nodes if each.target is torch.ops.aten.copy.default]:
        source, value = node.args[1], node.meta["val"]
        with graph.inserting_before(node):
            made = graph.call_function(torch.ops.aten.expand.default, (source, list(value.shape)))
            made.meta = {**node.meta, "val": source.meta["val"].expand(value.shape)}
            if source.meta["val"].dtype != value.dtype:
                made = graph.call_function(torch.ops.aten._to_copy.default, (made,), {"dtype": value.dtype})
                made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _detach(graph: fx.Graph, output: fx.Node) -> None:
    with graph.inserting_after(output):
        detached = graph.call_function(torch.ops.aten.detach.default, (output,))
    detached.meta = dict(output.meta)
    output.replace_all_uses_with(detached, delete_user_cb=lambda user: user is not detached)


def _graph_of(
    program: ExportedProgram, built: LossModule, inputs: Sequence[BatchTensor], name: str, precision: str
) -> OperatorGraph:
    loss = _loss_node(program.graph)
    needed = _ancestors(loss)
    parameters: dict[fx.Node, str] = {}
    constants: dict[fx.Node, Tensor] = {}
    batch: dict[fx.Node, BatchTensor] = {}
    named = built.named_parameters(remove_duplicate=False)
    values: dict[str, Tensor] = {key.removeprefix(_PREFIX): each for key, each in named}
    by_name = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    specs = {each.name: each for each in inputs}
    for spec in program.graph_signature.input_specs:
        node = by_name.get(getattr(spec.arg, "name", ""))
        if node is None or (node not in needed and spec.kind is not InputKind.USER_INPUT):
            continue
        target = (spec.target or "").removeprefix(_PREFIX)
        if spec.kind is InputKind.USER_INPUT:
            if node.name not in specs:
                raise ModelError(f"{name}: a tensor of its batch has a name that torch.export changes to {node.name!r}")
            batch[node] = specs[node.name]
        elif spec.kind is InputKind.PARAMETER and values[target].requires_grad:
            parameters[node] = target
        else:
            constants[node] = _constant(program, spec.target or "")
    order = [node for node in program.graph.nodes if node in needed and node.op != "placeholder"]
    _refuse(order, name)
    # In fp32 a module's own casts are operators, and nothing but fp32 crosses, as before there was bf16.
    halves = precision == "bf16"
    casts = {node: node.all_input_nodes[0] for node in order if halves and _is_cast(node, parameters)}
    trained: set[fx.Node] = {*parameters, *casts}
    for node in order:
        if trained.intersection(node.all_input_nodes):
            trained.add(node)
    sources = {**{node: node for node in parameters}, **casts}
    operators = _with_shared_first([node for node in order if node in trained and node not in casts], trained, sources)
    if loss not in trained or not operators:
        raise ModelError(f"{name}: its loss depends on no parameter")
    others = [node for node in order if node not in trained]
    boundary_dtypes = frozenset((torch.float32, torch.bfloat16) if halves else (torch.float32,))
    return OperatorGraph(name, operators, casts, others, parameters, constants, batch, loss, values, boundary_dtypes)


def _is_cast(node: fx.Node, parameters: Mapping[fx.Node, str]) -> bool:
    """Return whether a node is a parameter in bf16."""
    cast = node.target is torch.ops.aten._to_copy.default and node.args[0] in parameters
    return cast and node.kwargs == {"dtype": torch.bfloat16}


def _loss_node(graph: fx.Graph) -> fx.Node:
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    [loss] = output.args[0]
    assert isinstance(loss, fx.Node), "LossModule returns one tensor"
    return loss


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found, waiting = {node}, [node]
    while waiting:
        for each in waiting.pop().all_input_nodes:
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


def _constant(program: ExportedProgram, target: str) -> Tensor:
    value = program.state_dict.get(target, program.constants.get(target))
    assert isinstance(value, Tensor), f"{target} is a buffer, a fixed parameter or a constant"
    return value.detach()


def _refuse(order: Iterable[fx.Node], name: str) -> None:
    """Raise ModelError for an operator that no stage could repeat, or that depends on how a tensor lies in memory."""
    for node in order:
        if node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            raise ModelError(f"{name}: its operator {node.target} is not supported{_within(node)}")
        if torch.Tag.nondeterministic_seeded in node.target.tags and not _without_dropout(node):
            raise ModelError(f"{name}: its operator {node.target} draws random numbers{_within(node)}; leave it out")
        if node.target is torch.ops.aten.as_strided.default:
            raise ModelError(f"{name}: its operator {node.target} depends on the layout in memory{_within(node)}")
        if _argument(node, "sparse"):
            raise ModelError(f"{name}: its operator {node.target} has a sparse gradient{_within(node)}: sparse=False")


def _without_dropout(node: fx.Node) -> bool:
    """Return whether an operator that could drop (a fused attention, a recurrent layer) does not."""
    value = _argument(node, "dropout", "dropout_p")
    return isinstance(value, int | float) and value == 0


def _argument(node: fx.Node, *names: str) -> object:
    """Return the value of the argument that has one of these names; None: there is none."""
    assert isinstance(node.target, torch._ops.OpOverload), "checked before"
    for place, each in enumerate(node.target._schema.arguments):
        if each.name in names:
            return node.args[place] if place < len(node.args) else node.kwargs.get(each.name, each.default_value)
    return None


def where(node: fx.Node) -> str:
    """Return the name of the user's submodule that calls an operator; empty: the module itself."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(path) for path, _ in stack.values()]
    return names[-1].removeprefix("module").removeprefix(".") if names else ""


def _within(node: fx.Node) -> str:
    return f" (in {where(node)})" if where(node) else ""


def _with_shared_first(
    operators: Sequence[fx.Node], trained: set[fx.Node], sources: Mapping[fx.Node, fx.Node]
) -> list[fx.Node]:
    """Move each further operator on a parameter alone, such as a lookup in a shared embedding, behind the first use.

    So an encoder and a decoder can share their embedding on one stage. sources: parameter or cast -> the parameter.
    """
    moved: dict[fx.Node, list[fx.Node]] = {}
    first: dict[fx.Node, fx.Node] = {}
    for node in operators:
        own = [each for each in node.all_input_nodes if each in trained]
        shared = sources.get(own[0]) if len(own) == 1 else None
        if shared is not None and shared in first:
            moved.setdefault(first[shared], []).append(node)
        for each in own:
            if each in sources:
                first.setdefault(sources[each], node)
    late = {node for nodes in moved.values() for node in nodes}

    def placed(nodes: Iterable[fx.Node]) -> Iterator[fx.Node]:
        for node in nodes:
            yield node
            yield from placed(moved.get(node, ()))

    return list(placed(node for node in operators if node not in late))
