"""What a stage asks of the peer that serves it: memory, and bytes over the network. An estimate, made before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from swarmflow.boundary import Boundary
from swarmflow.compute.blocks import BLOCK_ELEMENTS, alignment, grid_blocks
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.families import dissect, to_config
from swarmflow.compute.flat import rounding_of
from swarmflow.compute.graphs.description import GraphModel, graph_model
from swarmflow.compute.grid import Blockwise
from swarmflow.compute.grouped_stage import two_documents
from swarmflow.compute.layout import FROZEN, StageLayout, blocks_of, layout_in_run, layout_of
from swarmflow.compute.microbatch_gradient import kept_blocks
from swarmflow.compute.model_keys import positions_of
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.partition import few_blocks
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage, head_tokens
from swarmflow.compute.state_root import item_bytes, tensor_elements
from swarmflow.manifest import Manifest

# Microbatches beyond those held: one for what a pass needs while it runs, and one for two whose parameters' gradients
# wait, each of which keeps 0.4 to 0.6 of a microbatch beside its graph (seven families of models).
TEMPORARY = 2
_TRIAL_TOKENS = 128
_FLOAT_BYTES = 4
_SPACING_BYTES = 4  # of a block of the grid to which gradients are rounded
_SUMS_BLOCK_BYTES = 20  # of a block of sums on it: spacing and inverse, bound, peak, and place of wide sums
_LOGITS_COPIES = 3  # the logits of one piece, their gradient, and what a head does to them (a cap, a scale)
_TOKEN_BYTES = 8  # of a token id and its target
_POSITION_BYTES = 4

# (a, b): a sequence of T tokens keeps a*T + b*T*T bytes
Growth = tuple[float, float]


@dataclass(frozen=True)
class Activations:
    """What the forward of one sequence keeps for its backward: the embedding, one block, what follows the blocks.

    compress, expand: the halves of a boundary.
    """

    embedding: Growth
    block: Growth
    head: Growth
    compress: Growth = (0.0, 0.0)
    expand: Growth = (0.0, 0.0)


@dataclass(frozen=True)
class StageMemory:
    """The memory of a stage without microbatches: weights, gradients, optimizer state and what an all-reduce needs."""

    device_bytes: int
    host_bytes: int = 0  # beside it, of what the state in the memory of the host takes

    @property
    def all_bytes(self) -> int:
        """What it takes where device and host have the same memory."""
        return self.device_bytes + self.host_bytes


@dataclass(frozen=True)
class StageDemands:
    """What one stage asks of each of its peers.

    memory_bytes: as in StageMemory, with all of it on the device. in_host: the same with the state in the memory of the
    host. microbatch_bytes: of the graph of one microbatch. sent_bytes, received_bytes: a microbatch. reduced_bytes:
    sent and received a step, at most, where the stage has several peers. state_bytes: fetched when a peer joins.
    """

    stage: int
    blocks: range
    parameters: int
    memory_bytes: int
    microbatch_bytes: int
    sent_bytes: int
    received_bytes: int
    reduced_bytes: int
    state_bytes: int
    in_host: StageMemory


NOTHING = Activations((0.0, 0.0), (0.0, 0.0), (0.0, 0.0))


def measure_activations(
    config: Mapping[str, Any],
    precision: str,
    dropout: bool,
    boundary: Boundary | None = None,
    *,
    positions: bool = False,
) -> Activations:
    """Measures on a few blocks of zeros, as three stages, with two short sequences.

    positions: several documents are in a row; the masks that keep them apart are counted. Raises ModelError.
    """
    few, between = few_blocks(config)
    longest = max(2, min(_TRIAL_TOKENS, positions_of(config) or _TRIAL_TOKENS))
    cut = (1, 1 + between)
    growth = partial(_growth, few, cut, longest, precision, dropout, positions)
    parts = [growth(stage) for stage in range(3)]
    block = parts[1][0] / between, parts[1][1] / between
    found = Activations(_excess(parts[0], block), block, _excess(parts[2], block))
    if boundary is None:
        return found
    ends = (growth(stage, boundary) for stage in (0, 2))
    compress, expand = (_excess(end, part) for end, part in zip(ends, parts[::2], strict=True))
    return replace(found, compress=compress, expand=expand)


def stage_demands(manifest: Manifest, activations: Activations) -> list[StageDemands]:
    """Of every stage of a run. Raises ModelError."""
    anatomy = dissect(to_config(manifest.model))
    blocks = len(anatomy.blocks)
    align = alignment(manifest.state_bits)
    layouts = [layout_of(anatomy, manifest.cut, stage, align, manifest.boundary) for stage in range(manifest.stages)]
    return [
        _demands(manifest, layout, blocks_of(manifest.cut, blocks, layout.stage), activations) for layout in layouts
    ]


def graph_demands(manifest: Manifest, activation_bytes: Sequence[int]) -> list[StageDemands]:
    """As `stage_demands`, of a module. activation_bytes: that each stage keeps of a microbatch. Raises ModelError."""
    model, cut = graph_model(manifest.model), manifest.cut
    edges = (0, *cut, model.operators)
    wire = [manifest.boundary_bytes(model.boundary(cut, number)) for number in range(len(cut))]
    early, late = (4 * sum(each.words for each in some) for some in (model.early(cut), model.late(cut)))
    found = []
    for stage, kept in enumerate(activation_bytes):
        layout, last = model.layout(cut, stage, alignment(manifest.state_bits)), stage == len(cut)
        before, after = wire[stage - 1] if stage else early, 0 if last else wire[stage] + late
        found.append(
            replace(
                _demands(manifest, layout, range(edges[stage], edges[stage + 1]), NOTHING),
                microbatch_bytes=kept,
                sent_bytes=(wire[stage - 1] if stage else 0) + after,
                received_bytes=before + late + (0 if last else wire[stage]),
            )
        )
    return found


def blocks_bytes(manifest: Manifest, activations: Activations, first: int, stop: int, blocks: int) -> int:
    """Return the memory that a stage of blocks `first` to `stop` takes with one microbatch, of so many blocks.

    With what a peer keeps free for passes: so much it needs to serve the stage at all.

    Raises ModelError.
    """
    cut = tuple(edge for edge in (first, stop) if 0 < edge < blocks)
    of = replace(manifest, cut=cut)
    layout = layout_in_run(of, int(first > 0))
    demands = _demands(of, layout, range(first, stop), activations)
    return demands.memory_bytes + (1 + TEMPORARY) * demands.microbatch_bytes


def operators_bytes(manifest: Manifest, model: GraphModel, kept_bytes: int, first: int, stop: int) -> int:
    """As `blocks_bytes`, of the operators `first` to `stop` of a module. kept_bytes: of one microbatch."""
    cut = tuple(edge for edge in (first, stop) if 0 < edge < model.operators)
    layout = model.layout(cut, int(first > 0), alignment(manifest.state_bits))
    return _memory_bytes(manifest, layout) + (1 + TEMPORARY) * kept_bytes


def stage_memory(manifest: Manifest, stage: int, *, in_host_memory: bool = False) -> StageMemory:
    """Return the memory of a stage without microbatches. in_host_memory: where its state is. Raises ModelError."""
    layout = layout_in_run(manifest, stage)
    return _host_memory(manifest, layout) if in_host_memory else StageMemory(_memory_bytes(manifest, layout))


def _demands(manifest: Manifest, layout: StageLayout, blocks: range, activations: Activations) -> StageDemands:
    first, last = layout.stage == 0, layout.stage == layout.stages - 1
    tokens = manifest.microbatch_sequences * manifest.seq_len
    boundary = manifest.plan.boundary_bytes
    return StageDemands(
        layout.stage,
        blocks,
        layout.parameters,
        _memory_bytes(manifest, layout),
        manifest.microbatch_sequences * _sequence_bytes(activations, len(blocks), first, last, manifest.seq_len),
        sent_bytes=boundary * (2 - first - last),
        received_bytes=boundary * (2 - first - last)
        + first * tokens * (_TOKEN_BYTES + _POSITION_BYTES * manifest.sends_positions),
        reduced_bytes=2 * manifest.piece.usual_bytes(layout.all_elements),
        state_bytes=layout.base_bytes
        + _state_bytes(manifest, layout)
        + _SPACING_BYTES * (1 + manifest.delay) * _grid_blocks(manifest, layout),
        in_host=_host_memory(manifest, layout),
    )


def _memory_bytes(manifest: Manifest, layout: StageLayout) -> int:
    sets = 1 + manifest.delay  # of parameters, and of the gradients of a step
    halves = 2 * sets if manifest.precision == "bf16" else 0
    memory = _base_bytes(manifest, layout) + _state_bytes(manifest, layout) + halves * layout.all_elements
    memory += sets * _SPACING_BYTES * _grid_blocks(manifest, layout)
    memory += (1 + sets) * _sums_bytes(manifest, layout)
    return memory + sets * _FLOAT_BYTES * _gradient_elements(manifest, layout) + _logits_bytes(manifest, layout)


def _base_bytes(manifest: Manifest, layout: StageLayout) -> int:
    """Return the bytes of frozen weights, and of the numbers of one that is in 4 bits while it is multiplied."""
    quantized = max((slot.elements for slot in layout.base if slot.form == "NF4"), default=0)
    return layout.base_bytes + quantized * (2 if manifest.precision == "bf16" else _FLOAT_BYTES)


def _host_memory(manifest: Manifest, layout: StageLayout) -> StageMemory:
    """Return the memory of a stage whose state is in that of the host."""
    sets, sums = 1 + manifest.delay, _sums_bytes(manifest, layout)
    device = _copies_bytes(manifest, layout) + sums + _FLOAT_BYTES * _gradient_elements(manifest, layout)
    host = _state_bytes(manifest, layout) + sets * _SPACING_BYTES * _grid_blocks(manifest, layout) + sums
    return StageMemory(_base_bytes(manifest, layout) + sets * device + _logits_bytes(manifest, layout), host)


def _copies_bytes(manifest: Manifest, layout: StageLayout) -> int:
    """Return the bytes of the weights that passes compute with, where these are copies (`working_weights.py`)."""
    if manifest.precision == "fp32":
        return _FLOAT_BYTES * layout.all_elements
    total = 0
    for group, slots in layout.groups.items():
        for slot in slots:
            if not layout.embeddings.issuperset(slot.holders or (slot.name,)):
                bf16_only = len(slot.shape) >= 2 and group != FROZEN and slot.name not in layout.fp32_matrices
                total += slot.elements * (2 if bf16_only else _FLOAT_BYTES)
    return total


def _sums_bytes(manifest: Manifest, layout: StageLayout) -> int:
    """Return the bytes of the sums of a step's gradients: those of a first step are its largest."""
    summed = max(manifest.piece.element_bytes, manifest.piece.first_element_bytes)
    blocks = _grid_blocks(manifest, layout)
    return blocks * _SUMS_BLOCK_BYTES + summed * (blocks * BLOCK_ELEMENTS or layout.all_elements)


def _logits_bytes(manifest: Manifest, layout: StageLayout) -> int:
    if layout.stage < layout.stages - 1 or not manifest.vocab_size:  # a module has no words
        return 0
    tokens = manifest.microbatch_sequences * manifest.seq_len
    element_bytes = 2 if manifest.precision == "bf16" else _FLOAT_BYTES
    return _LOGITS_COPIES * element_bytes * manifest.vocab_size * min(tokens, head_tokens(manifest.vocab_size))


def _gradient_elements(manifest: Manifest, layout: StageLayout) -> int:
    """Return how many gradients of one microbatch are kept, where they are rounded before they are added."""
    match rounding_of(manifest.accumulate, manifest.reduce_codec, manifest.microbatches):
        case Blockwise():
            kept = (blocks for entries in layout.groups.values() for blocks in kept_blocks(entries))
            return BLOCK_ELEMENTS * sum(blocks.count for blocks in kept)
        case None:
            return 0
    return layout.all_elements


def _grid_blocks(manifest: Manifest, layout: StageLayout) -> int:
    """Return the blocks of the grid to which gradients are rounded; 0: they are not."""
    rounding = rounding_of(manifest.accumulate, manifest.reduce_codec, manifest.microbatches)
    sizes = [layout.elements(group) for group in layout.groups] if isinstance(rounding, Blockwise) else []
    return sum(map(grid_blocks, sizes))


def _state_bytes(manifest: Manifest, layout: StageLayout) -> int:
    """Return the bytes of a stage's state but for grids: of its weights, also before, and of its moments."""
    names = make_optimizer(OptimizerSettings.of(manifest)).state_names()
    sizes = [layout.elements(group) for group in layout.groups]
    kept = sum(item_bytes(name) * tensor_elements(name, elements) for name in names for elements in sizes)
    return _FLOAT_BYTES * (1 + manifest.delay) * layout.all_elements + kept


def _sequence_bytes(activations: Activations, blocks: int, first: bool, last: bool, tokens: int) -> int:
    parts = [
        (activations.block, blocks),
        (activations.embedding, int(first)),
        (activations.head, int(last)),
        (activations.expand, int(not first)),
        (activations.compress, int(not last)),
    ]
    return round(sum(count * (a * tokens + b * tokens * tokens) for (a, b), count in parts))


def _growth(
    config: Mapping[str, Any],
    cut: tuple[int, ...],
    longest: int,
    precision: str,
    dropout: bool,
    positions: bool,
    stage: int,
    boundary: Boundary | None = None,
) -> Growth:
    part = build_stage(config, cut, stage, device="cpu", dropout=dropout, boundary=boundary)
    runner = StageRunner(part, precision)
    draw = DrawKey(0, 0, 0) if part.dropout else None

    def a_token(tokens: int) -> float:
        x = torch.zeros(1, tokens, dtype=torch.int64) if part.first else torch.zeros(part.boundary_shape(1, tokens))
        return runner.activation_bytes(two_documents(x, tokens) if positions else x, draw) / tokens

    return _line(longest // 2, a_token(longest // 2), longest, a_token(longest))


def _line(low: int, at_low: float, high: int, at_high: float) -> Growth:
    slope = max(0.0, (at_high - at_low) / (high - low))
    return at_high - slope * high, slope


def _excess(part: Growth, block: Growth) -> Growth:
    return max(0.0, part[0] - block[0]), max(0.0, part[1] - block[1])
