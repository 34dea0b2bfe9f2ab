"""How gradients are rounded to a grid and added: by torch, or on CPUs by a kernel that the installation compiled.

Both give the same bits. Torch makes six passes over a gradient, the kernel (rounding.c) two: with it a microbatch of
128 tokens takes 1.02 to 1.04 of the time with fp32 sums, and 1.09 to 1.10 without (benchmarks/rounding.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from swarmflow.compute.blocks import BLOCK_ELEMENTS
from swarmflow.compute.grid import DITHER_ELEMENTS, dither
from swarmflow.compute.kernels import in_parts, library

_DITHER_ROWS: Final = DITHER_ELEMENTS // BLOCK_ELEMENTS  # after which the dither repeats
# Blocks that a thread rounds at a time, a multiple of the dither's: gradients, dither, temporaries and sums of so many
# take 1 MiB, a second-level cache. With 1024, which take 4 MiB, rounding took a tenth longer; with fewer the calls do.
_CHUNK_ROWS: Final = 1 << 8
_DEVICE_CHUNK_ROWS: Final = 1 << 14
_THREAD_ROWS_MIN: Final = 1 << 10  # for fewer another thread takes longer to begin than to round


def block_peaks(rows: Tensor) -> Tensor:
    """Return the largest absolute value of each row, fp32 [n]; not a number where a row has one that is not.

    rows: fp32 [n, 256], contiguous.
    """
    kernel = _kernel_for(rows)
    if kernel is None:
        return torch.maximum(rows.amax(dim=1), rows.amin(dim=1).neg_())  # ten times as fast as a norm
    peaks = rows.new_empty(len(rows))
    _in_parts(len(rows), lambda start, count: kernel.peaks(rows[start:], count, peaks[start:]))
    return peaks


@torch.no_grad()
def add_rounded(rows: Tensor, scales: Tensor, first: int, number: int, weight: int, sums: Tensor) -> None:
    """Add rounded gradients to sums: floor(gradient * scale + dither), times the weight.

    rows: fp32 [n, 256], contiguous; they stay as they are, since autograd may have handed out the same memory twice.
    scales: fp32 [n]; first: the number of the first row's block in its group; number: of the microbatch, over all
    steps; weight: 1 or -1; sums: int16 or, in a first step, int32 [n, 256], contiguous, for which no sum is too large.
    """
    kernel = _kernel_for(rows) if sums.dtype == torch.int16 else None
    if kernel is None:
        _add_by_torch(rows, scales, first, number, weight, sums)
        return
    offsets = _dither_rows(number, 0, rows.device)

    def part(start: int, count: int) -> None:
        kernel.add_rounded(rows[start:], scales[start:], offsets, first + start, count, weight, sums[start:])

    _in_parts(len(rows), part)


def rounded(rows: Tensor, scales: Tensor, blocks: Tensor, number: int) -> Tensor:
    """Return rounded gradients of some blocks, fp32 [n, 256].

    rows: fp32 [n, 256]; scales: fp32 [n]; blocks: int64 [n], their numbers in their group.
    """
    offsets = _dither_rows(number, 0, rows.device)[blocks % _DITHER_ROWS]
    return torch.addcmul(offsets, rows, scales.unsqueeze(1)).floor_()


def compiled() -> bool:
    """Return whether this installation has the kernel."""
    return _kernel() is not None


def _add_by_torch(rows: Tensor, scales: Tensor, first: int, number: int, weight: int, sums: Tensor) -> None:
    size = _CHUNK_ROWS * torch.get_num_threads() if rows.device.type == "cpu" else _DEVICE_CHUNK_ROWS
    offsets = _dither_rows(number, size, rows.device)[first % _DITHER_ROWS :][:size]
    floats, integers = torch.empty_like(rows[:size]), torch.empty_like(sums[:size])
    columns = scales.unsqueeze(1).split(size)
    for part, scale, total in zip(rows.split(size), columns, sums.split(size), strict=True):
        count = len(part)
        if count < len(floats):  # the last one; slices of all of them take as long as a pass over memory
            floats, integers = floats[:count], integers[:count]
        torch.addcmul(offsets[:count] if count < len(offsets) else offsets, part, scale, out=floats)
        total.add_(integers.copy_(floats.floor_()), alpha=weight)


@lru_cache(maxsize=2)
def _dither_rows(number: int, rows: int, device: torch.device) -> Tensor:
    """Return the dither of a microbatch, fp32 [n, 256]: once, and again for `rows` more, a multiple of 256."""
    return dither(number, device).view(_DITHER_ROWS, BLOCK_ELEMENTS).repeat(rows // _DITHER_ROWS + 1, 1)


# --- the kernel -------------------------------------------------------------------------------------------------------


class _Kernel:
    """The functions of rounding.c, of tensors in memory."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._peaks, self._add_rounded = library.swarmflow_peaks, library.swarmflow_add_rounded
        self._peaks.argtypes = (pointer, size, pointer)
        self._add_rounded.argtypes = (pointer, pointer, pointer, size, size, ctypes.c_int, pointer)
        self._peaks.restype = self._add_rounded.restype = None

    def peaks(self, rows: Tensor, count: int, peaks: Tensor) -> None:
        """Write the peaks of the first rows."""
        self._peaks(rows.data_ptr(), count, peaks.data_ptr())

    def add_rounded(
        self, rows: Tensor, scales: Tensor, offsets: Tensor, first: int, count: int, weight: int, sums: Tensor
    ) -> None:
        """Add the first rows to the sums."""
        pointers = (rows.data_ptr(), scales.data_ptr(), offsets.data_ptr())
        self._add_rounded(*pointers, first, count, weight, sums.data_ptr())


def _kernel_for(rows: Tensor) -> _Kernel | None:
    assert rows.is_contiguous(), "blocks one after the other"
    return _kernel() if rows.device.type == "cpu" else None


@lru_cache(maxsize=1)
def _kernel() -> _Kernel | None:
    """Return the kernel; None: there was no compiler when swarmflow was installed."""
    found = library("_rounding")
    return None if found is None else _Kernel(found)


def _in_parts(rows: int, call: Callable[[int, int], None]) -> None:
    """Call with the first row and the number of rows of each part, one for each of torch's threads."""
    in_parts(rows, min(torch.get_num_threads(), rows // _THREAD_ROWS_MIN), call)
