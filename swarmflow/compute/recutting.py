"""Cuts the state of a run anew: from the files of one cut's stages to those of another one's, to the bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swarmflow.compute.blocks import BLOCK_ELEMENTS
from swarmflow.compute.checkpoint import Checkpoint
from swarmflow.compute.layout import StageLayout, TensorSlot
from swarmflow.compute.stage_file import StageFile
from swarmflow.compute.stage_state import CHUNK_ELEMENTS, chunks
from swarmflow.compute.state_root import GRID, Span, by_blocks, item_bytes, tensor_name
from swarmflow.compute.tensorfile import TensorFileWriter
from swarmflow.errors import CheckpointError

Spacings = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Place:
    """Where a parameter lies before: in the file of a stage, in a group of it."""

    file: StageFile
    group: str
    slot: TensorSlot

    def read(self, part: str, start: int, stop: int) -> bytes:
        """Return what a tensor of the state has of elements of the parameter."""
        here = _range(self.slot, start, stop, part)
        return self.file.read(tensor_name(self.group, part), here.start, here.stop)


def cut_anew(
    before: Sequence[StageLayout],
    after: Sequence[StageLayout],
    elements: Callable[[int], Mapping[str, int]],
    source: Checkpoint,
    target: Checkpoint,
) -> None:
    """Write a version's stages by another cut.

    before, after: the layouts of all stages, of one model. elements: stage -> tensor name -> length, of the new files.
    source, target: checkpoints of the same version. Every parameter, and what the optimizer keeps for it, is copied;
    8-bit moments with their scales, for which every parameter begins at the edge of a block. A block of a grid of
    gradients gets the coarsest spacing of the blocks that its elements come from, so that whatever fitted still does.
    Raises CheckpointError.
    """
    with ExitStack() as opened:
        files = {layout.stage: opened.enter_context(source.state(layout.stage)) for layout in before}
        places = {
            slot.name: _Place(files[layout.stage], group, slot)
            for layout in reversed(before)
            for group, slots in layout.groups.items()
            for slot in slots
        }
        for layout in after:
            writer = target.writer(layout.stage, elements(layout.stage))
            try:
                for name, length in elements(layout.stage).items():
                    group, _, part = name.partition(".")
                    if part == GRID:
                        _write_grid(writer, name, _spacings(layout.groups[group], places, length))
                    else:
                        _copy(writer, name, part, layout.groups[group], places)
                target.add(layout.stage, writer)
            finally:
                writer.abandon()


def _copy(
    writer: TensorFileWriter, name: str, part: str, slots: Sequence[TensorSlot], places: Mapping[str, _Place]
) -> None:
    end = 0
    for slot in slots:
        place = _of(places, slot)
        if end < slot.offset and not by_blocks(part):  # between parameters that begin at the edges of blocks
            writer.write(name, end, bytes(item_bytes(part) * (slot.offset - end)))
        for _, start, stop in chunks({name: slot.elements}):
            writer.write(name, _range(slot, start, stop, part).start, place.read(part, start, stop))
        end = slot.stop


def _range(slot: TensorSlot, start: int, stop: int, part: str) -> slice:
    """Return what a tensor of a group has of elements of a parameter."""
    return Span("", slot.offset + start, slot.offset + stop).of(part)


def _spacings(slots: Sequence[TensorSlot], places: Mapping[str, _Place], blocks: int) -> Spacings:
    """Return the spacing of each block of a group: the coarsest of those that its elements had."""
    found = np.zeros(blocks, dtype=np.float32)
    for slot in slots:
        place = _of(places, slot)
        edges = [0]
        for offset in (place.slot.offset, slot.offset):
            edges += range(-offset % BLOCK_ELEMENTS, slot.elements, BLOCK_ELEMENTS)
        starts = np.array(sorted({edge for edge in edges if edge < slot.elements}), dtype=np.int64)
        first = place.slot.offset // BLOCK_ELEMENTS
        last = -(-place.slot.stop // BLOCK_ELEMENTS)
        data = place.file.read(tensor_name(place.group, GRID), first, last)
        former = np.frombuffer(data, dtype="<f4")
        np.maximum.at(
            found,
            (slot.offset + starts) // BLOCK_ELEMENTS,
            former[(place.slot.offset + starts) // BLOCK_ELEMENTS - first],
        )
    return found


def _write_grid(writer: TensorFileWriter, name: str, spacings: Spacings) -> None:
    for start in range(0, len(spacings), CHUNK_ELEMENTS):
        writer.write(name, start, spacings[start : start + CHUNK_ELEMENTS].astype("<f4").tobytes())


def _of(places: Mapping[str, _Place], slot: TensorSlot) -> _Place:
    place = places.get(slot.name)
    if place is None or place.slot.shape != slot.shape:
        raise CheckpointError(f"the version to be cut anew has no parameter {slot.name} of this shape")
    return place
