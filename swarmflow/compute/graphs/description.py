"""What a run's manifest says of a module: enough to lay out its stages without importing the module's code."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from swarmflow.compute.layout_types import OWN, TIED, StageLayout, TensorSlot
from swarmflow.errors import ModelError

MODULE = "module"  # the key of a manifest's model by which a module is told from a Hugging Face configuration
INPUT_BYTES = {"float32": 4, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}  # of an element, by dtype


@dataclass(frozen=True)
class BatchTensor:
    """One named tensor of a microbatch.

    shape: fixed. dtype: a key of INPUT_BYTES. last_use: the last operator that needs it, -1: none does.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    last_use: int = -1

    @property
    def words(self) -> int:
        """Its length on the wire, in units of 4 bytes."""
        return -(-math.prod(self.shape) * INPUT_BYTES[self.dtype] // 4)


@dataclass(frozen=True)
class GraphParameter:
    """One parameter. name: in the module's state_dict. uses: the operators that it is an argument of, rising."""

    name: str
    shape: tuple[int, ...]
    uses: tuple[int, ...]


@dataclass(frozen=True)
class GraphModel:
    """A module as a graph of operators, numbered in a topological order.

    module: "package:function". module_config: the function's keyword arguments. items: of a microbatch. crossing:
    for each p, the elements of the tensors that cross a cut before operator p, -1: it cannot be cut there.
    digest: of the graph, its constants and the parameters of version 0, the same in every process of the run.
    bf16_only: the names of the parameters that are used in bf16 alone.
    """

    module: str
    module_config: dict[str, Any]
    items: int
    inputs: tuple[BatchTensor, ...]
    parameters: tuple[GraphParameter, ...]
    crossing: tuple[int, ...]
    digest: str
    bf16_only: tuple[str, ...] = ()

    @property
    def operators(self) -> int:
        """Their number."""
        return len(self.crossing)

    def late(self, cut: Sequence[int]) -> tuple[BatchTensor, ...]:
        """Return the tensors of a microbatch that a stage after the first needs; they travel with it through all."""
        return tuple(each for each in self._used() if self._stage(cut, each.last_use) > 0)

    def early(self, cut: Sequence[int]) -> tuple[BatchTensor, ...]:
        """Return those that the first stage alone needs."""
        return tuple(each for each in self._used() if self._stage(cut, each.last_use) == 0)

    def boundary(self, cut: Sequence[int], number: int) -> int:
        """Return the elements of the tensors between the stages `number` and `number + 1`."""
        return self.crossing[cut[number]]

    def check_cut(self, cut: Sequence[int]) -> None:
        """Raise ModelError, naming what is allowed, where the graph cannot be cut there."""
        edges = [0, *cut, self.operators]
        if any(low >= high for low, high in itertools.pairwise(edges)):
            raise ModelError(f"cut = {list(cut)} must rise strictly within 1 to {self.operators - 1}: operators")
        for position in cut:
            if self.crossing[position] < 0:
                others = [p for p, elements in enumerate(self.crossing) if elements >= 0]
                near = sorted(others, key=lambda p: abs(p - position))[:4]
                raise ModelError(
                    f"cut = {list(cut)}: a tensor crosses there that is not fp32, nor bf16 of a run in bf16; near "
                    f"{position} it can be cut before the operators {', '.join(map(str, sorted(near)))}"
                )
        filled = set()
        for parameter in self.parameters:
            stages = self._stages_of(parameter, cut)
            if len(stages) > 1 and stages != (0, len(cut)):
                raise ModelError(
                    f"cut = {list(cut)}: the parameter {parameter.name} would be shared by the stages {list(stages)}; "
                    "only the first and the last stage can share one"
                )
            if len(stages) == 1:
                filled.add(stages[0])
        if empty := sorted(set(range(len(cut) + 1)) - filled):
            raise ModelError(f"cut = {list(cut)}: stage {empty[0]} would have no parameter of its own")

    def layout(self, cut: Sequence[int], stage: int, align: int = 1) -> StageLayout:
        """Return the layout of one stage. Raises ModelError when the cut or the stage is impossible.

        align: as in `stage_layout`.
        """
        self.check_cut(cut)
        if not 0 <= stage <= len(cut):
            raise ModelError(f"stage {stage} does not exist: the run has the stages 0 to {len(cut)}")
        own: list[GraphParameter] = []
        tied: list[GraphParameter] = []
        for parameter in self.parameters:
            stages = self._stages_of(parameter, cut)
            if stage in stages:
                (tied if len(stages) > 1 else own).append(parameter)
        groups = {OWN: _place(own, align)} | ({TIED: _place(tied, align)} if tied else {})
        spread = {TIED: (0, len(cut))} if tied else {}
        return StageLayout(
            stage,
            len(cut) + 1,
            groups,
            stored={},
            prefix="",
            tied=None,
            tied_alias=None,
            spread=spread,
            fp32_matrices=frozenset(each.name for each in (*own, *tied)).difference(self.bf16_only),
        )

    def _used(self) -> Sequence[BatchTensor]:
        return [each for each in self.inputs if each.last_use >= 0]

    def _stage(self, cut: Sequence[int], operator: int) -> int:
        return bisect.bisect_right(cut, operator)

    def _stages_of(self, parameter: GraphParameter, cut: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted({self._stage(cut, use) for use in parameter.uses}))


def is_graph(model: Mapping[str, Any]) -> bool:
    """Return whether a manifest's model is a module, not a Hugging Face configuration."""
    return MODULE in model


def graph_model(model: Mapping[str, Any]) -> GraphModel:
    """Return the module that a manifest describes. Raises ModelError where it is described wrongly."""
    try:
        found = msgspec.convert(model, GraphModel)
    except msgspec.ValidationError as error:
        raise ModelError(f"the run's manifest describes its module in a way that is not understood: {error}") from None
    if any(each.dtype not in INPUT_BYTES for each in found.inputs):
        raise ModelError(f"the run's manifest has tensors of a dtype other than {', '.join(INPUT_BYTES)}")
    sizes = [
        size for shape in ([i.shape for i in found.inputs] + [p.shape for p in found.parameters]) for size in shape
    ]
    uses = [use for each in found.parameters for use in (*each.uses, len(each.uses) - 1)]
    if any(size < 0 for size in sizes) or any(not 0 <= use < found.operators for use in uses) or found.items < 1:
        raise ModelError("the run's manifest describes its module in a way that is impossible")
    return found


def graph_as_json(model: GraphModel) -> dict[str, Any]:
    """Return the module as the manifest has it."""
    found = msgspec.to_builtins(model)
    assert isinstance(found, dict), "a dataclass becomes a dict"
    if not model.bf16_only:  # as before there was bf16, so that a run keeps its name
        del found["bf16_only"]
    return found


def _place(parameters: Sequence[GraphParameter], align: int) -> tuple[TensorSlot, ...]:
    """Return the slots of parameters. A microbatch has one backward pass, which gives each its whole gradient."""
    offsets = itertools.accumulate((-(-math.prod(each.shape) // align) * align for each in parameters), initial=0)
    return tuple(
        TensorSlot(each.name, each.shape, offset, single_gradient=True)
        for each, offset in zip(parameters, offsets, strict=False)
    )
