"""Where each parameter of a stage lies in the stage's flat buffers; the same on every machine."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from swarmflow.boundary import Boundary
from swarmflow.compute.adapters import adapters_of, is_adapter, is_quantized, plain_name
from swarmflow.compute.blocks import alignment
from swarmflow.compute.boundary_layers import ExpandingHalf, halves_of, is_of_boundary
from swarmflow.compute.experts import balance_of
from swarmflow.compute.families import Anatomy, dissect, stored_names, to_config
from swarmflow.compute.graphs.description import graph_model, is_graph
from swarmflow.compute.layout_types import FROZEN, OWN, TIED, BaseSlot, StageLayout, TensorSlot, placed
from swarmflow.errors import ModelError
from swarmflow.manifest import Manifest

__all__ = [
    "FROZEN",
    "OWN",
    "TIED",
    "StageLayout",
    "TensorSlot",
    "blocks_of",
    "check_cut",
    "layout_in_run",
    "layout_of",
    "shared_name",
    "stage_layout",
]

_SHARED = "shared-"
MODELS_CACHED = 8  # layouts of whole models: a process works with one, and with small ones to examine it


def shared_name(group: int) -> str:
    """Return the reduction group of the weights that the blocks of several stages share."""
    return f"{_SHARED}{group}"


def check_cut(cut: Sequence[int], blocks: int) -> tuple[int, ...]:
    """The cut as a tuple when it is possible: the first block of stages 1, 2, ..., each stage with a block.

    Raises ModelError, naming what is allowed.
    """
    edges = [0, *cut, blocks]
    if len(edges) - 1 > blocks:
        raise ModelError(f"{len(edges) - 1} stages asked of a model with {blocks} blocks; allowed: 1 to {blocks}")
    if any(low >= high for low, high in itertools.pairwise(edges)):
        raise ModelError(f"cut = {list(cut)} must rise strictly within 1 to {blocks - 1}: there are {blocks} blocks")
    return tuple(cut)


def blocks_of(cut: Sequence[int], blocks: int, stage: int) -> range:
    """The blocks of one stage. Raises ModelError when the cut or the stage is impossible."""
    edges = (0, *check_cut(cut, blocks), blocks)
    if not 0 <= stage < len(edges) - 1:
        raise ModelError(f"stage {stage} does not exist: the run has the stages 0 to {len(edges) - 2}")
    return range(edges[stage], edges[stage + 1])


def stage_layout(
    config: Mapping[str, Any], cut: Sequence[int], stage: int, align: int = 1, boundary: Boundary | None = None
) -> StageLayout:
    """The layout of one stage, computed on the meta device (no weights in memory). Raises ModelError.

    config: of a Hugging Face model, or of a module (`graphs/description.py`). align: every parameter begins at a
    multiple of it; what lies between two parameters is and stays zero. boundary: what compresses between the stages of
    a model, if it is learnt.
    """
    if is_graph(config):
        return graph_model(config).layout(cut, stage, align)
    return _cut_out(_model_layout(json.dumps(config, sort_keys=True)), cut, stage, align, boundary)


def layout_in_run(manifest: Manifest, stage: int) -> StageLayout:
    """The layout of a stage of a run. Raises ModelError."""
    return stage_layout(manifest.model, manifest.cut, stage, alignment(manifest.state_bits), manifest.boundary)


def layout_of(
    anatomy: Anatomy, cut: Sequence[int], stage: int, align: int = 1, boundary: Boundary | None = None
) -> StageLayout:
    """As `stage_layout`, for a model that is already taken apart (and not yet cut)."""
    return _cut_out(_listed(anatomy), cut, stage, align, boundary)


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a whole model: its full name, with adapters in it, shape and block (None: outside the blocks).

    frozen: whether it is a buffer, which no gradient trains. form: beside adapters, in which it is kept (BaseSlot);
    empty: it is in a group.
    """

    name: str
    shape: tuple[int, ...]
    block: int | None
    frozen: bool = False
    form: str = ""


@dataclass(frozen=True)
class _ModelLayout:
    """The parameters of a whole model. shared: as in Anatomy. The other fields are those of a StageLayout."""

    parameters: tuple[_Parameter, ...]  # in the model's order
    entry: frozenset[str]  # those outside the blocks that are used before the first one
    embeddings: frozenset[str]  # those of them that are looked up
    blocks_name: str
    blocks: int
    hidden_size: int
    shared: tuple[range, ...]
    stored: Mapping[str, str]
    prefix: str
    tied: str | None
    tied_alias: str | None
    beside: int

    def sharing(self, block: int) -> range:
        """Return the blocks whose weights are those of this block."""
        return next((group for group in self.shared if block in group), range(block, block + 1))


@functools.lru_cache(maxsize=MODELS_CACHED)
def _model_layout(config: str) -> _ModelLayout:
    """config: JSON. Cached: to build a model, if only on the meta device, takes 0.1 s for each twelve blocks."""
    return _listed(dissect(to_config(json.loads(config))))


def _listed(anatomy: Anatomy) -> _ModelLayout:
    named = [(name, tuple(parameter.shape)) for name, parameter in anatomy.model.named_parameters()]
    balance = balance_of(anatomy.model)
    frozen = [(name, tuple(anatomy.model.get_buffer(name).shape)) for name in anatomy.frozen]
    form = _forms(anatomy)
    return _ModelLayout(
        parameters=(
            *(_Parameter(name, shape, anatomy.block_of(name), form=form(name, shape)) for name, shape in named),
            *(
                _Parameter(name, shape, anatomy.block_of(name), frozen=True, form=form(name, ()))
                for name, shape in frozen
            ),
        ),
        entry=frozenset(name for name, _ in named if name.rpartition(".")[0] in anatomy.entry),
        embeddings=frozenset(
            f"{name}.weight" for name in anatomy.entry if isinstance(anatomy.model.get_submodule(name), nn.Embedding)
        ),
        blocks_name=anatomy.blocks_name,
        blocks=len(anatomy.blocks),
        hidden_size=int(anatomy.model.config.hidden_size),
        shared=anatomy.shared,
        stored=stored_names(anatomy.model),
        prefix=anatomy.model.base_model_prefix,
        tied=anatomy.tied,
        tied_alias=f"{anatomy.head}.weight" if anatomy.tied else None,
        beside=balance.width if balance is not None else 0,
    )


def _forms(anatomy: Anatomy) -> Callable[[str, tuple[int, ...]], str]:
    """Return what gives the form in which a parameter is kept frozen; empty: it is trained."""
    lora = adapters_of(anatomy.model.config)

    def form(name: str, shape: tuple[int, ...]) -> str:
        if lora is None or is_adapter(name):
            return ""
        if lora.quantized and is_quantized(anatomy.model, anatomy.blocks_name, name):
            return "NF4"
        return "BF16" if lora.half and len(shape) >= 2 else "F32"

    return form


def _cut_out(model: _ModelLayout, cut: Sequence[int], stage: int, align: int, boundary: Boundary | None) -> StageLayout:
    mine = blocks_of(cut, model.blocks, stage)
    ends = stage == 0, stage == len(cut)
    found: dict[str, list[tuple[_Parameter, tuple[str, ...]]]] = {OWN: []}
    frozen: list[BaseSlot] = []
    for parameter in model.parameters:
        if parameter.form:
            if holders := _frozen_holders(model, parameter, mine, ends):
                name = plain_name(parameter.name)
                frozen.append(BaseSlot(name, parameter.shape, parameter.form, 0, holders))
            continue
        if parameter.block is not None:
            group, holders = _in_blocks(model, parameter, parameter.block, mine)
            group = FROZEN if parameter.frozen else group
        elif parameter.name == model.tied:
            assert model.tied_alias is not None
            group = TIED if cut else OWN
            holders = (parameter.name,) * ends[0] + (model.tied_alias,) * ends[1]
        else:
            group, holders = OWN, (parameter.name,) * ends[parameter.name not in model.entry]
        if holders:
            found.setdefault(group, []).append((parameter, holders))
    for half_name, half in halves_of(boundary, model.hidden_size, stage, len(cut) + 1).items():
        added = [_of_half(f"{half_name}.{leaf}", parameter) for leaf, parameter in half.named_parameters()]
        found[OWN] = [*added, *found[OWN]] if isinstance(half, ExpandingHalf) else [*found[OWN], *added]
    return StageLayout(
        stage=stage,
        stages=len(cut) + 1,
        groups={group: _place(found[group], model, align) for group in sorted(found, key=_order)},
        stored=model.stored,
        prefix=model.prefix,
        tied=model.tied,
        tied_alias=model.tied_alias,
        spread={group: _spread(model, cut, group) for group in sorted(found, key=_order) if group not in (OWN, FROZEN)},
        boundary=boundary,
        embeddings=model.embeddings,
        beside=model.beside,
        base=placed(frozen),
    )


def _frozen_holders(
    model: _ModelLayout, parameter: _Parameter, mine: range, ends: tuple[bool, bool]
) -> tuple[str, ...]:
    """Return the names under which a stage has a frozen parameter; none: it has it not.

    ends: whether the stage is the first one, and the last one. Of a tied weight both have a copy.
    """
    if parameter.block is not None:
        return (parameter.name,) * (parameter.block in mine)
    if parameter.name == model.tied:
        assert model.tied_alias is not None
        return (parameter.name,) * ends[0] + (model.tied_alias,) * ends[1]
    return (parameter.name,) * ends[parameter.name not in model.entry]


def _spread(model: _ModelLayout, cut: Sequence[int], group: str) -> tuple[int, ...]:
    """Return the stages that have a group."""
    if group == TIED:
        return 0, len(cut)
    blocks = model.shared[int(group.removeprefix(_SHARED))]
    edges = itertools.pairwise((0, *cut, model.blocks))
    return tuple(stage for stage, (low, high) in enumerate(edges) if low < blocks.stop and blocks.start < high)


def _in_blocks(model: _ModelLayout, parameter: _Parameter, block: int, mine: range) -> tuple[str, tuple[str, ...]]:
    """Return the reduction group of a parameter of a block, and its names in the blocks of a stage that use it.

    Of blocks that share their weights only the first one's parameters have a place: the others have no names here.
    """
    sharing = model.sharing(block)
    held = range(max(sharing.start, mine.start), min(sharing.stop, mine.stop))
    if block != sharing.start or not held:
        return OWN, ()
    leaf = parameter.name.removeprefix(f"{model.blocks_name}.{block}.")
    holders = tuple(f"{model.blocks_name}.{each}.{leaf}" for each in held)
    return OWN if held == sharing else shared_name(model.shared.index(sharing)), holders


def _order(group: str) -> tuple[bool, bool, int, str]:
    return group != OWN, group == TIED, len(group), group


def _place(
    parameters: Sequence[tuple[_Parameter, tuple[str, ...]]], model: _ModelLayout, align: int
) -> tuple[TensorSlot, ...]:
    sizes = (-(-math.prod(each.shape) // align) * align for each, _ in parameters)
    offsets = itertools.accumulate(sizes, initial=0)
    return tuple(
        TensorSlot(each.name, each.shape, offset, _is_single(model, each, holders), holders)
        for (each, holders), offset in zip(parameters, offsets, strict=False)
    )


def _of_half(name: str, parameter: nn.Parameter) -> tuple[_Parameter, tuple[str, ...]]:
    return _Parameter(name, tuple(parameter.shape), None), (name,)


def _is_single(model: _ModelLayout, parameter: _Parameter, holders: tuple[str, ...]) -> bool:
    """Whether a parameter is of the base model or of a boundary, and used once."""
    of_base = parameter.name.startswith(f"{model.prefix}.") or is_of_boundary(parameter.name)
    return of_base and parameter.name != model.tied and len(holders) == 1
