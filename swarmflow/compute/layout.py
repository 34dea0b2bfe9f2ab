"""Where each parameter of a stage lies in the stage's flat buffers; the same on every machine."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarmflow.boundary import Boundary
from swarmflow.compute.blocks import alignment
from swarmflow.compute.boundary_layers import ExpandingHalf, halves_of, is_of_boundary
from swarmflow.compute.families import Anatomy, dissect, stored_names, to_config
from swarmflow.errors import ModelError
from swarmflow.manifest import Manifest

OWN = "own"
TIED = "tied"
MODELS_CACHED = 8  # layouts of whole models: a process works with one, and with small ones to examine it


@dataclass(frozen=True)
class TensorSlot:
    """One parameter: its name in the whole Hugging Face model, its shape, its first element in the flat buffer.

    single_gradient: whether one backward pass gives the whole gradient of a microbatch. The head has several, one for
    each piece of its logits.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    single_gradient: bool = False

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.offset + self.elements


@dataclass(frozen=True)
class StageLayout:
    """The flat layout of one stage: reduction group -> its parameters, in the order of the whole model.

    The group `own` holds everything but the tied weight; the group `tied` holds that weight alone and exists only on
    the first and on the last of several stages. tied, tied_alias: its name, and the name of the head's weight that
    checkpoints may use instead. stored: name -> name in the family's checkpoints where that is another one. prefix: the
    base model's name, which some checkpoints leave out. boundary: what compresses between the stages, if it is learnt.
    """

    stage: int
    stages: int
    groups: Mapping[str, tuple[TensorSlot, ...]]
    stored: Mapping[str, str]
    prefix: str
    tied: str | None
    tied_alias: str | None
    boundary: Boundary | None = None

    def elements(self, group: str) -> int:
        """Number of elements of a group's flat buffer."""
        entries = self.groups[group]
        return entries[-1].stop if entries else 0

    @property
    def parameters(self) -> int:
        """Number of parameters of the stage, the tied weight included."""
        return sum(slot.elements for slots in self.groups.values() for slot in slots)

    @property
    def all_elements(self) -> int:
        """Number of elements of the flat buffers of all groups."""
        return sum(self.elements(group) for group in self.groups)


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

    align: every parameter begins at a multiple of it; what lies between two parameters is and stays zero. boundary:
    what compresses between the stages, if it is learnt.
    """
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
class _ModelLayout:
    """The parameters of a whole model. The other fields are those of a StageLayout."""

    parameters: tuple[tuple[str, tuple[int, ...], int | None], ...]  # (name, shape, its block), in the model's order
    entry: frozenset[str]  # those outside the blocks that are used before the first one
    blocks: int
    hidden_size: int
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
        hidden_size=int(anatomy.model.config.hidden_size),
        stored=stored_names(anatomy.model),
        prefix=anatomy.model.base_model_prefix,
        tied=anatomy.tied,
        tied_alias=f"{anatomy.head}.weight" if anatomy.tied else None,
    )


def _cut_out(model: _ModelLayout, cut: Sequence[int], stage: int, align: int, boundary: Boundary | None) -> StageLayout:
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
    for half_name, half in halves_of(boundary, model.hidden_size, stage, stages).items():
        added = [(f"{half_name}.{leaf}", tuple(parameter.shape)) for leaf, parameter in half.named_parameters()]
        own = [*added, *own] if isinstance(half, ExpandingHalf) else [*own, *added]
    return StageLayout(
        stage=stage,
        stages=stages,
        groups={OWN: _place(own, model, align)} | ({TIED: _place(tied, model, align)} if tied else {}),
        stored=model.stored,
        prefix=model.prefix,
        tied=model.tied,
        tied_alias=model.tied_alias,
        boundary=boundary,
    )


def _place(
    parameters: Sequence[tuple[str, tuple[int, ...]]], model: _ModelLayout, align: int
) -> tuple[TensorSlot, ...]:
    offsets = itertools.accumulate((-(-math.prod(shape) // align) * align for _, shape in parameters), initial=0)
    return tuple(
        TensorSlot(name, shape, offset, _is_used_once(name, model))
        for (name, shape), offset in zip(parameters, offsets, strict=False)
    )


def _is_used_once(name: str, model: _ModelLayout) -> bool:
    """Whether a parameter is of the base model, or of a boundary, and not of the head too."""
    return name != model.tied and (name.startswith(f"{model.prefix}.") or is_of_boundary(name))
