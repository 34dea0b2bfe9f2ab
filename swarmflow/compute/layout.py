"""Where each parameter of a stage lies in the stage's flat buffers; the same on every machine."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarmflow.compute.families import Anatomy, dissect, stored_names, to_config
from swarmflow.compute.graphs.description import graph_model, is_graph
from swarmflow.compute.layout_types import OWN, TIED, StageLayout, TensorSlot
from swarmflow.errors import ModelError

__all__ = ["OWN", "TIED", "StageLayout", "TensorSlot", "blocks_of", "check_cut", "layout_of", "stage_layout"]

MODELS_CACHED = 8  # layouts of whole models: a process works with one, and with small ones to examine it


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


def stage_layout(config: Mapping[str, Any], cut: Sequence[int], stage: int, align: int = 1) -> StageLayout:
    """The layout of one stage, computed on the meta device (no weights in memory). Raises ModelError.

    config: of a Hugging Face model, or of a module (`graphs/description.py`). align: every parameter begins at a
    multiple of it; what lies between two parameters is and stays zero.
    """
    if is_graph(config):
        return graph_model(config).layout(cut, stage, align)
    return _cut_out(_model_layout(json.dumps(config, sort_keys=True)), cut, stage, align)


def layout_of(anatomy: Anatomy, cut: Sequence[int], stage: int, align: int = 1) -> StageLayout:
    """As `stage_layout`, for a model that is already taken apart (and not yet cut)."""
    return _cut_out(_listed(anatomy), cut, stage, align)


@dataclass(frozen=True)
class _ModelLayout:
    """The parameters of a whole model. The other fields are those of a StageLayout."""

    parameters: tuple[tuple[str, tuple[int, ...], int | None], ...]  # (name, shape, its block), in the model's order
    entry: frozenset[str]  # those outside the blocks that are used before the first one
    blocks: int
    stored: Mapping[str, str]
    prefix: str
    tied: str | None
    tied_alias: str | None


@functools.lru_cache(maxsize=MODELS_CACHED)
def _model_layout(config: str) -> _ModelLayout:
    """config: JSON. Cached: to build a model, if only on the meta device, takes 0.1 s for each twelve blocks."""
    return _listed(dissect(to_config(json.loads(config))))


def _listed(anatomy: Anatomy) -> _ModelLayout:
    named = [(name, tuple(parameter.shape)) for name, parameter in anatomy.model.named_parameters()]
    return _ModelLayout(
        parameters=tuple((name, shape, anatomy.block_of(name)) for name, shape in named),
        entry=frozenset(name for name, _ in named if name.rpartition(".")[0] in anatomy.entry),
        blocks=len(anatomy.blocks),
        stored=stored_names(anatomy.model),
        prefix=anatomy.model.base_model_prefix,
        tied=anatomy.tied,
        tied_alias=f"{anatomy.head}.weight" if anatomy.tied else None,
    )


def _cut_out(model: _ModelLayout, cut: Sequence[int], stage: int, align: int) -> StageLayout:
    mine = blocks_of(cut, model.blocks, stage)
    stages = len(cut) + 1
    own: list[tuple[str, tuple[int, ...]]] = []
    tied: list[tuple[str, tuple[int, ...]]] = []
    for name, shape, block in model.parameters:
        if stages > 1 and name == model.tied:
            here, target = stage in (0, stages - 1), tied
        elif block is not None:
            here, target = block in mine, own
        else:
            here, target = stage == (0 if name in model.entry else stages - 1), own
        if here:
            target.append((name, shape))
    return StageLayout(
        stage=stage,
        stages=stages,
        groups={OWN: _place(own, model, align)} | ({TIED: _place(tied, model, align)} if tied else {}),
        stored=model.stored,
        prefix=model.prefix,
        tied=model.tied,
        tied_alias=model.tied_alias,
    )


def _place(
    parameters: Sequence[tuple[str, tuple[int, ...]]], model: _ModelLayout, align: int
) -> tuple[TensorSlot, ...]:
    offsets = itertools.accumulate((-(-math.prod(shape) // align) * align for _, shape in parameters), initial=0)
    return tuple(
        TensorSlot(name, shape, offset, name.startswith(f"{model.prefix}.") and name != model.tied)
        for (name, shape), offset in zip(parameters, offsets, strict=False)
    )
