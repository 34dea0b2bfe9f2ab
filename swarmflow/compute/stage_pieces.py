"""The state of a stage in pieces: ranges of parameters with all that belongs to them, read, written and updated alone.

Optimizers work element by element, but for ratios that come with an update, and block by block where moments have 8
bits; so do the grids of blockwise sums after the first step. A piece consists of whole blocks. So a piece of any
version follows the updates by itself, to the bits of the whole stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from swarmflow.compute.blockwise_sums import BlockwiseSums
from swarmflow.compute.finite import finite
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.flat_tensors import Buffer, bytes_of, memory_of, sum_of_bits
from swarmflow.compute.grid import Grid
from swarmflow.compute.layout import TensorSlot
from swarmflow.compute.optimizer import Optimizer
from swarmflow.compute.packed_integers import USUAL_BITS
from swarmflow.compute.stage_state import BEFORE
from swarmflow.compute.state_root import GRID, PIECE_ELEMENTS, Span, item_bytes, leaf_of, tensor_name
from swarmflow.compute.sums import Sums, TensorSums
from swarmflow.errors import FrameError

HASHED_ELEMENTS = 1 << 20  # that are fetched at a time: from a GPU one copy takes as long as that of a single piece


@dataclass(frozen=True)
class SpanUpdate:
    """The update of a step, for one span."""

    step: int
    scale: float
    learning_rate: float
    ratios: tuple[float, ...]  # of the whole group (Optimizer.follow)
    sums: Buffer  # packed (Sums.pack)


class StagePieces:
    """Pieces of a stage's state in memory.

    sets: the groups of the stage, once for each step that may be computed at a time (runtime/execution/served.py).
    """

    def __init__(self, sets: Sequence[Mapping[str, FlatGroup]], optimizer: Optimizer) -> None:
        self._sets = sets
        self._optimizer = optimizer

    def all(self) -> list[Span]:
        """Return all pieces, in their order."""
        whole = [Span(name, 0, group.params.numel()) for name, group in self._sets[0].items()]
        return [piece for span in whole for piece in span.pieces()]

    def fits(self, span: Span) -> bool:
        """Return whether a span is one of this stage, whole pieces but for the group's end."""
        group = self._sets[0].get(span.group)
        if group is None or not 0 <= span.start < span.stop <= group.params.numel():
            return False
        edge = span.stop == group.params.numel() or span.stop % PIECE_ELEMENTS == 0
        return edge and span.start % PIECE_ELEMENTS == 0

    def state_bytes(self, span: Span) -> int:
        """Return the bytes of a span's state."""
        return sum(part.nbytes for part in self._parts(span, 0))

    def update_bytes(self, span: Span) -> int:
        """Return about how many bytes the sums of a step take for a span."""
        blockwise = isinstance(self._sets[0][span.group].sums, BlockwiseSums)
        return round((USUAL_BITS if blockwise else 32) / 8 * (span.stop - span.start))

    def read(self, span: Span, version: int) -> bytearray:
        """Return the state of a span, where the stage is at this version."""
        return bytearray().join(memory_of(part.cpu()) for part in self._parts(span, version))

    def sums_of(self, piece: Span, version: int, data: Buffer) -> dict[str, Tensor]:
        """Return the sums over the bits of what was read of a piece, by the tensors' names in the state: int64 []."""
        parts = self._named_parts(piece, version)
        numbers = _taken_apart(bytes_of(data), [part for _, part in parts])
        return {
            tensor_name(piece.group, name): sum_of_bits(given) for (name, _), given in zip(parts, numbers, strict=True)
        }

    def leaves(self, version: int) -> Iterator[bytes]:
        """Yield the hashes of all pieces, in their order, where the stage is at this version."""
        for name, group in self._sets[0].items():
            for start in range(0, group.params.numel(), HASHED_ELEMENTS):
                span = Span(name, start, min(start + HASHED_ELEMENTS, group.params.numel()))
                parts = [(part, memory_of(tensor.cpu())) for part, tensor in self._named_parts(span, version)]
                for piece in span.pieces():
                    yield leaf_of(_within_span(memory, part, piece, span) for part, memory in parts)

    @torch.no_grad()
    def write(self, span: Span, version: int, data: Buffer) -> None:
        """Set the state of a span. Raises FrameError for what does not fit or is not finite."""
        raw, parts = bytes_of(data), self._parts(span, version)
        if raw.numel() != sum(part.nbytes for part in parts):
            raise FrameError(f"{span} has {raw.numel()} bytes of state")
        numbers = _taken_apart(raw, parts)
        if not all(finite(given) for given in numbers if given.is_floating_point()):
            raise FrameError(f"{span} has values that are not finite")
        for part, given in zip(parts, numbers, strict=True):
            part.copy_(given)

    @torch.no_grad()
    def follow(self, span: Span, update: SpanUpdate) -> None:
        """Apply the update of a step to a span that is at its version.

        Raises FrameError for what does not fit, NotFiniteError for a result that is not finite: the span is lost then.
        """
        group, latest = self._groups(update.step)[span.group], self._groups(update.step + 1)[span.group]
        sums = _sums_of(group, span, update.sums)
        ratios = _ratios_of(group, span, update.ratios)
        here, blocks = slice(span.start, span.stop), span.of(GRID)
        if group is not latest:
            group.params[here].copy_(latest.params[here])
            if isinstance(group.sums, BlockwiseSums) and isinstance(latest.sums, BlockwiseSums):
                group.sums.grid.spacings[blocks].copy_(latest.sums.grid.spacings[blocks])
        part = _part_of(group, span)
        gradient, scale, rate = sums.gradient(), update.scale, update.learning_rate
        self._optimizer.follow(part, gradient, scale, rate, update.step, ratios)
        if isinstance(group.sums, BlockwiseSums) and isinstance(sums, BlockwiseSums):
            grid = group.sums.grid
            Grid(grid.spacings[blocks], grid.rounding, grid.addends).follow(sums.peaks, update.step)

    def _groups(self, step: int) -> Mapping[str, FlatGroup]:
        return self._sets[step % len(self._sets)]

    def _parts(self, span: Span, version: int) -> list[Tensor]:
        """Return the tensors of which the state of a span consists at a version, in their order."""
        return [tensor for _, tensor in self._named_parts(span, version)]

    def _named_parts(self, span: Span, version: int) -> list[tuple[str, Tensor]]:
        """Return the same with their names in the group, as `StageState` has them."""
        tensors = [self._groups(version + 1)[span.group].tensors()]
        if len(self._sets) > 1:
            before = self._groups(version)[span.group].tensors()
            tensors.append({BEFORE + name: before[name] for name in ("params", GRID) if name in before})
        return [(name, tensor[span.of(name)]) for named in tensors for name, tensor in named.items()]


def _within_span(memory: memoryview, part: str, piece: Span, span: Span) -> memoryview:
    """Return the bytes of a piece of a tensor. memory: those of the span around it."""
    here, first, size = piece.of(part), span.of(part).start, item_bytes(part)
    return memory[size * (here.start - first) : size * (here.stop - first)]


def _taken_apart(raw: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    """Return the numbers of which bytes consist. raw: uint8. parts: tensors of the same lengths and dtypes.

    Copies: a part behind one of odd length does not lie where it can be read 32 or 64 bits at a time.
    """
    given = raw.split([part.nbytes for part in parts])
    return [piece.clone().view(part.dtype) for piece, part in zip(given, parts, strict=True)]


def _sums_of(group: FlatGroup, span: Span, packed: Buffer) -> Sums:
    """Return the sums of a step for a span, on the grid on which the step's gradients were rounded."""
    elements = span.stop - span.start
    sums: Sums
    if isinstance(group.sums, BlockwiseSums):
        grid = group.sums.grid
        here = Grid(grid.spacings[span.of(GRID)].clone(), grid.rounding, grid.addends)
        if not here.known:
            raise FrameError("the first step is not followed")
        sums = BlockwiseSums(here, elements)
    else:
        sums = TensorSums(torch.empty_like(group.params[span.start : span.stop]))
    sums.put(0, elements, packed)
    return sums


def _ratios_of(group: FlatGroup, span: Span, ratios: tuple[float, ...]) -> tuple[float, ...]:
    """Return the ratios of the tensors of which a span has a part. Raises FrameError."""
    if len(ratios) not in (0, len(group.entries)):
        raise FrameError(f"an update of {len(group.entries)} tensors has {len(ratios)} ratios")
    return tuple(ratio for entry, ratio in zip(group.entries, ratios, strict=bool(ratios)) if _within(entry, span))


def _within(entry: TensorSlot, span: Span) -> bool:
    return entry.offset < span.stop and span.start < entry.stop


def _part_of(group: FlatGroup, span: Span) -> FlatGroup:
    """Return a group of the parameters of a span alone, in the same memory."""
    entries = []
    for entry in group.entries:
        if _within(entry, span):
            start, stop = max(entry.offset, span.start), min(entry.stop, span.stop)
            entries.append(TensorSlot(entry.name, (stop - start,), start - span.start))
    state = {name: tensor[span.of(name)] for name, tensor in group.state.items()}
    params = group.params[span.start : span.stop]
    return replace(group, entries=tuple(entries), params=params, state=state, microbatch=None)
