"""Sums of gradients on a grid: exact in any order, and some ten bits an element on the way.

A block of 256 elements is summed in 16 bits, and sent in as many as its largest sum needs. Where a gradient of a
microbatch is too large for that, its block is added in 64 bits, beside: the grid follows in the next step. In the first
step, sums take 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from blake3 import blake3
from torch import Tensor

from swarmflow.compute.blocks import BLOCK_ELEMENTS, grid_blocks
from swarmflow.compute.device_work import DeviceWork
from swarmflow.compute.exact import ExponentOverflowError
from swarmflow.compute.flat_tensors import (
    Blocks,
    Buffer,
    Moved,
    added_up,
    block_squares,
    bytes_of,
    memory_of,
    rounded_product,
)
from swarmflow.compute.grid import WIDE_BITS, Grid
from swarmflow.compute.packed_integers import pack_blocks, unpack_blocks
from swarmflow.compute.queued_wide_sums import QueuedWideSums
from swarmflow.compute.rounding import add_rounded, block_peaks, rounded
from swarmflow.compute.sums import SUMMED, Sums, TensorSums
from swarmflow.errors import FrameError

PEAKS = "peaks"  # the name of those among stored tensors
_WIDE_BYTES = 8 * BLOCK_ELEMENTS + 4  # of a wide block in a packed piece: its sums, and its number
_CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class _Piece:
    """A range of sums. wide: int64 [n, 256], the blocks `where` (int32 [n], from the range's first, rising)."""

    narrow: Tensor  # int16 [blocks * 256], or int32 in the first step; zeros behind the last element
    peaks: Tensor  # fp32 [blocks]
    where: Tensor
    wide: Tensor

    def to(self, device: torch.device) -> _Piece:
        """Return it on this device."""
        return _Piece(self.narrow.to(device), self.peaks.to(device), self.where.to(device), self.wide.to(device))


@dataclass
class StoredSums(TensorSums):
    """Blockwise sums as the fp32 gradient that they stand for, and their peaks, fp32 [blocks]."""

    peaks: Tensor = field(default_factory=lambda: torch.zeros(0))

    def stored(self) -> dict[str, Tensor]:
        """Return both."""
        return {SUMMED: self.flat, PEAKS: self.peaks}


class BlockwiseSums:
    """The sums of a group, on its grid as that is when they are set to zero.

    peaks: of each block, the largest gradient in one microbatch: from the sums of all members follows the next grid. It
    does not become smaller where a gradient is taken away again: another copy of it has been added elsewhere.
    device: where they are; None: where the grid is, as the group's parameters are.
    """

    def __init__(self, grid: Grid, elements: int, device: torch.device | None = None) -> None:
        self.grid = grid
        self._elements = elements
        self._blocks = grid_blocks(elements)
        device = device or grid.spacings.device
        self.peaks = torch.zeros(self._blocks, device=device)
        self._narrow = torch.zeros(0, dtype=torch.int16, device=device)
        self.queued = QueuedWideSums()
        self.zero()

    @property
    def elements(self) -> int:
        """Return the number of parameters."""
        return self._elements

    @property
    def nbytes(self) -> int:
        """Return the memory, in bytes."""
        return sum(part.nbytes for part in self.tensors())

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of which they consist."""
        return self._narrow, self.peaks, self._spacings, self._inverse, self._bounds, self._slots, self._wide

    # --- one peer's part ----------------------------------------------------------------------------------------------

    def zero(self) -> None:
        """Set everything to zero, on the grid as it is now."""
        self._spacings = self.grid.present().to(self.peaks.device)
        self._inverse = self._spacings.reciprocal()
        self._bounds = self._spacings * self.grid.limit  # the largest gradients that fit
        size, dtype = self._blocks * BLOCK_ELEMENTS, torch.int16 if self.grid.known else torch.int32
        if self._narrow.dtype == dtype and self._narrow.numel() == size:
            self._narrow.zero_()
        else:
            self._narrow = torch.zeros(size, dtype=dtype, device=self.peaks.device)
        self.peaks.zero_()
        self._slots = torch.full_like(self.peaks, -1, dtype=torch.int32)  # of wide blocks; -1: it is not wide
        self._wide = self._narrow.new_zeros((0, BLOCK_ELEMENTS), dtype=torch.int64)
        self._used = 0  # rows of _wide
        self._void = False
        self.queued.reset()

    def spoil(self) -> None:
        """Mark the sums as void until they are set to zero: they may hold a part of a microbatch."""
        self._void = True

    @torch.no_grad()
    def add(self, gradient: Tensor, weight: int, number: int, first: int = 0, work: DeviceWork | None = None) -> None:
        """Add gradients of a microbatch (weight 1), or take them away (-1).

        gradient: fp32 [n * 256], of the blocks from `first` on; behind the last element it is padded with zeros.
        number: of the microbatch, over all steps. Raises ExponentOverflowError, and adds nothing, where one is not
        finite or too large, in a later step 2^50 times as large as those before. With a work that does not read at once
        nothing is raised, the sums are void instead, and `queued.judge` has to follow.
        """
        rows = gradient.view(-1, BLOCK_ELEMENTS)
        blocks = slice(first, first + len(rows))
        peaks = block_peaks(rows)
        scales = self._inverse[blocks]
        fits = peaks <= self._bounds[blocks]  # no comparison with what is not a number is true
        if work is not None and not work.at_once:
            self._add_wide_queued(rows, scales, peaks, fits, weight, number, first)
            scales = scales * fits
        elif not bool(fits.all()):
            if self.first or not bool((peaks <= self._spacings[blocks] * 2.0**WIDE_BITS).all()):
                raise ExponentOverflowError(finite=self.first and bool(peaks.isfinite().all()))
            wide = fits.logical_not().nonzero().flatten()
            self._widen(wide + first, rounded(rows[wide], scales[wide], wide + first, number).long().mul_(weight))
            scales = scales * fits  # beside them nothing of these is added: the dither alone is rounded to 0
        largest = self.peaks[blocks]
        torch.maximum(largest, peaks, out=largest)
        add_rounded(rows, scales, first, number, weight, self._narrow.view(-1, BLOCK_ELEMENTS)[blocks])

    @property
    def first(self) -> bool:
        """Whether they are of a first step, on a grid that nothing was learnt for."""
        return self._narrow.dtype == torch.int32

    # --- an all-reduce ------------------------------------------------------------------------------------------------

    def empty(self, elements: int | None = None) -> BlockwiseSums:
        """Return zeros of the same step; with another length, to sum packed pieces whose grid does not matter here."""
        if elements is None:
            return BlockwiseSums(self.grid, self.elements)
        spacings = torch.full((grid_blocks(elements),), float(self.grid.known), device=self._home)
        return BlockwiseSums(Grid(spacings, self.grid.rounding, self.grid.addends), elements)

    def pack(self, start: int, stop: int) -> Buffer:
        """Return a piece as it is sent: wide blocks, their numbers, peaks, and the narrow sums.

        It starts at the edge of a block, and ends at one or with the last element.
        """
        piece = self._piece(start, stop)
        narrow = [piece.narrow[: stop - start]] if self.first else pack_blocks(piece.narrow)
        parts = [part.cpu() for part in (piece.wide.flatten(), piece.where, piece.peaks, *narrow)]
        return bytearray().join(map(memory_of, parts))

    def digest(self, start: int, stop: int) -> str:
        """Return the blake3 hex digest of a piece's values."""
        piece, hasher = self._piece(start, stop), blake3()
        for part in (piece.wide, piece.where, piece.peaks, piece.narrow):
            hasher.update(memory_of(part.cpu()))
        return hasher.hexdigest()

    def put(self, start: int, stop: int, data: Buffer) -> None:
        """Replace a piece by one that was packed. Raises FrameError for what does not fit."""
        self.total(start, stop, [data])

    @torch.no_grad()
    def total(self, start: int, stop: int, addends: Sequence[Sums | Buffer]) -> None:
        """Replace a piece by the sum of others. Raises FrameError for a packed one that does not fit."""
        pieces = []
        for addend in addends:
            if isinstance(addend, BlockwiseSums):
                pieces.append(addend._piece(start, stop).to(self.peaks.device))
            else:
                assert isinstance(addend, bytes | bytearray | memoryview), "of the same group, or packed"
                pieces.append(self._unpacked(addend, stop - start))
        first = start // BLOCK_ELEMENTS
        blocks = grid_blocks(stop - start)
        narrow = self._narrow[start : start + blocks * BLOCK_ELEMENTS].zero_()
        peaks = self.peaks[first : first + blocks].zero_()
        slots = self._slots[first : first + len(peaks)]
        self._wide[slots[slots >= 0]] = 0
        for piece in pieces:
            narrow.add_(piece.narrow)
            torch.maximum(peaks, piece.peaks, out=peaks)
            self._widen(piece.where.long() + first, piece.wide)

    # --- the gradient -------------------------------------------------------------------------------------------------

    def gradient(self) -> Blocks:
        """Return the gradient that they stand for."""
        return self if self._home == self.peaks.device else Moved(self, self._home)

    def __getitem__(self, where: slice) -> Tensor:
        """fp32, the elements `where`."""
        start, stop, _ = where.indices(self.elements)
        first, after = start // BLOCK_ELEMENTS, grid_blocks(stop)
        spacings = self._spacings[first:after].unsqueeze(1)
        sums = self._narrow.view(-1, BLOCK_ELEMENTS)[first:after]
        values = rounded_product(sums, spacings) if self.first else sums.float().mul_(spacings)
        wide = (self._slots[first:after] >= 0).nonzero().flatten()
        if len(wide):
            whole = sums[wide].long().add_(self._wide[self._slots[first:after][wide]])
            values[wide] = rounded_product(whole, spacings[wide])
        return values.flatten()[start - first * BLOCK_ELEMENTS : stop - first * BLOCK_ELEMENTS]

    def storable(self) -> StoredSums:
        """Return the gradient in fp32, and the peaks."""
        gradient, values = self.gradient(), torch.empty(self.elements, device=self._home)
        for start in range(0, self.elements, _CHUNK_ELEMENTS):
            values[start : start + _CHUNK_ELEMENTS] = gradient[start : start + _CHUNK_ELEMENTS]
        return StoredSums(values, peaks=self.peaks.to(self._home, copy=True))

    def stored(self) -> dict[str, Tensor]:
        """Raise TypeError: `storable` returns others."""
        raise TypeError("sums on a grid are not stored as they are")

    def sum_of_squares(self) -> float:
        """Return that of the gradient; not a number where it is void."""
        return math.nan if self._void or self.queued.is_void() else added_up(self.block_squares(0, self.elements))

    def block_squares(self, start: int, stop: int) -> list[float]:
        """Return what `sum_of_squares` adds up for a piece."""
        return block_squares(self.gradient(), start, stop)

    def first_not_finite(self) -> int | None:
        """Return the first element that is not finite: integers are, but not what too large ones stand for."""
        for start in range(0, self.elements, _CHUNK_ELEMENTS):
            broken = torch.isfinite(self[start : start + _CHUNK_ELEMENTS]).logical_not_().nonzero()
            if broken.numel():
                return start + int(broken[0])
        return None

    # --- details ------------------------------------------------------------------------------------------------------

    @property
    def _home(self) -> torch.device:
        return self.grid.spacings.device

    def _add_wide_queued(
        self, rows: Tensor, scales: Tensor, peaks: Tensor, fits: Tensor, weight: int, number: int, first: int
    ) -> None:
        """Add the blocks of a gradient that do not fit, in 64 bits, without knowing how many there are."""
        self.queued.begin(self._slots, self._used)
        if self.first:
            self.queued.note(peaks.isfinite().all(), fits.all())
            return
        self._wide = self.queued.with_room(self._wide)
        usable = peaks <= self._spacings[first : first + len(rows)] * 2.0**WIDE_BITS
        self.queued.note(usable.all())
        where, chosen = self.queued.choose(fits.logical_not() & usable, len(self._wide))
        blocks = where + first
        addends = rounded(rows[where], scales[where], blocks, number).masked_fill_(
            chosen.logical_not().unsqueeze(1), 0.0
        )
        self._wide.index_add_(0, self.queued.slots_for(blocks, chosen, len(self._wide)), addends.long().mul_(weight))

    def _widen(self, blocks: Tensor, addends: Tensor) -> None:
        """Add to blocks (int64 [n]) in 64 bits."""
        if not len(blocks):
            return
        if self.queued.begun:
            self._used = int(self.queued.taken)
        fresh = blocks[self._slots[blocks] < 0]
        needed = self._used + len(fresh)
        if needed > len(self._wide):
            grown = self._wide.new_zeros((max(needed, 2 * len(self._wide)), BLOCK_ELEMENTS))
            grown[: self._used] = self._wide[: self._used]
            self._wide = grown
        self._slots[fresh] = torch.arange(self._used, needed, dtype=torch.int32, device=blocks.device)
        self._used = needed
        if self.queued.begun:
            self.queued.set_used(needed)
        self._wide.index_add_(0, self._slots[blocks], addends)

    def _piece(self, start: int, stop: int) -> _Piece:
        """Return a piece without copying its narrow sums. Wide blocks that have become zero again are left out."""
        first, count = start // BLOCK_ELEMENTS, grid_blocks(stop - start)
        slots = self._slots[first : first + count]
        where = (slots >= 0).nonzero().flatten()
        wide = self._wide[slots[where]]
        kept = wide.any(dim=1)
        peaks = self.peaks[first : first + count]
        narrow = self._narrow[start : start + count * BLOCK_ELEMENTS]
        return _Piece(narrow, peaks, where[kept].int(), wide[kept])

    def _unpacked(self, data: Buffer, elements: int) -> _Piece:
        """Return a piece that was packed. Raises FrameError for what is none."""
        raw, blocks = bytes_of(data), grid_blocks(elements)
        if self.first:
            before, narrow = _last(raw, 4 * elements)
        else:
            narrow, before = unpack_blocks(raw, blocks)
            narrow[elements:] = 0
        before, peaks = _last(before, 4 * blocks)
        count = 0 if self.first else before.numel() // _WIDE_BYTES
        if before.numel() != count * _WIDE_BYTES or count > blocks:
            raise FrameError(f"a piece of {elements} elements has {raw.numel()} bytes")
        if self.first:  # numbers are read only of a whole piece: else they may begin at any byte
            narrow = torch.nn.functional.pad(narrow.view(torch.int32), (0, blocks * BLOCK_ELEMENTS - elements))
        wide, where = _last(before, 4 * count)
        piece = _Piece(
            narrow,
            peaks.view(torch.float32),
            where.view(torch.int32).clamp(0, blocks - 1),
            wide.view(torch.int64).view(-1, BLOCK_ELEMENTS),
        )
        return piece.to(self.peaks.device)


def _last(raw: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return what comes before the last bytes, and these. Raises FrameError where there are fewer."""
    if raw.numel() < size:
        raise FrameError(f"a part of {size} bytes in {raw.numel()}")
    before, last = raw.split([raw.numel() - size, size])
    return before, last
