"""The root of a stage's state: one hash over the hashes of its pieces, the same in memory and in a file.

A piece is a range of the parameters of a flat group with all that belongs to it: the optimizer's tensors, the grid of
blockwise sums and, where updates are delayed, the parameters of the version before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from blake3 import blake3

from swarmflow.compute.blocks import BLOCK_ELEMENTS, grid_blocks

if TYPE_CHECKING:  # files are read where torch is not loaded
    from swarmflow.compute.flat_tensors import Buffer

GRID = "grid"  # among the tensors of a group's state: a spacing a block
CODES = "_codes"  # ends the name of a tensor of 8-bit numbers (compute/moments.py); all others are fp32
SCALES = "_scales"  # ends the name of the tensor that goes with it: a scale a block
LEAF_BYTES = 32
PIECE_ELEMENTS = 1 << 14  # 192 KiB with adam's moments: at 50 Mb/s a tensor that comes meanwhile waits 31 ms for one
_REST_ELEMENTS = 1 << 20  # that are read at a time of what belongs to no piece


class Span(NamedTuple):
    """A range of the parameters of a flat group. `start` is the edge of a piece."""

    group: str
    start: int
    stop: int

    def pieces(self) -> list[Span]:
        """Return the pieces of which it consists."""
        starts = range(self.start, self.stop, PIECE_ELEMENTS)
        return [Span(self.group, start, min(start + PIECE_ELEMENTS, self.stop)) for start in starts]

    def of(self, tensor: str) -> slice:
        """Return its part of a tensor of the group: the same elements, or their blocks (`by_blocks`)."""
        if by_blocks(tensor):
            return slice(self.start // BLOCK_ELEMENTS, grid_blocks(self.stop))
        return slice(self.start, self.stop)


def by_blocks(tensor: str) -> bool:
    """Return whether a tensor of a group has one number for each block of 256 parameters."""
    return tensor.endswith((GRID, SCALES))


def item_bytes(tensor: str) -> int:
    """Return the bytes of a number of a tensor of a stage's state, by its name."""
    return 1 if tensor.endswith(CODES) else 4


def tensor_elements(tensor: str, parameters: int) -> int:
    """Return the length of a tensor of a group of so many parameters."""
    return grid_blocks(parameters) if by_blocks(tensor) else parameters


def piece_elements(tensor: str) -> int:
    """Return how many elements of a tensor of a group belong to a piece."""
    return PIECE_ELEMENTS // BLOCK_ELEMENTS if by_blocks(tensor) else PIECE_ELEMENTS


def tensor_name(group: str, part: str) -> str:
    """Return the name, in a stage's file, of a reduction group's `params` or of one of its optimizer tensors."""
    return f"{group}.{part}"


def leaf_of(parts: Iterable[Buffer]) -> bytes:
    """Return the hash of a piece. parts: of its tensors, in their order."""
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def root_of(leaves: Iterable[bytes]) -> str:
    """Return the root over the hashes of all pieces of a stage, in their order."""
    return blake3(b"".join(leaves)).hexdigest()


def leaves_of(elements: Mapping[str, int], read: Callable[[str, int, int], Buffer]) -> Iterator[bytes]:
    """Yield the hashes of all pieces of a state that is read by ranges.

    elements: length of each tensor, by name, in their order. read: returns elements [start, stop) of a tensor. Tensors
    that are not cut into pieces, such as sums that wait for their commit, are one more piece at the end.
    """
    groups = {group: elements[name] for name in elements for group, part in [_split(name)] if part == "params"}
    cut: dict[str, list[str]] = {group: [] for group in groups}
    rest: list[str] = []
    for name, count in elements.items():
        group, part = _split(name)
        whole = Span(group, 0, groups.get(group, 0)).of(part)
        (cut[group] if group in cut and whole.stop == count else rest).append(name)
    for group, names in cut.items():
        for piece in Span(group, 0, groups[group]).pieces():
            ranges = [(name, piece.of(name)) for name in names]
            yield leaf_of(read(name, here.start, here.stop) for name, here in ranges)
    if rest:
        spans = [(name, start) for name in rest for start in range(0, elements[name], _REST_ELEMENTS)]
        yield leaf_of(read(name, start, min(start + _REST_ELEMENTS, elements[name])) for name, start in spans)


def _split(name: str) -> tuple[str, str]:
    group, _, part = name.partition(".")
    return group, part
