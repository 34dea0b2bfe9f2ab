"""Codes of 8-bit moments on CPUs by a kernel that the installation compiled: one pass each.

It gives the bits of the passes of numpy in `moments.py`, in a part of their time (docs/decisions/state-bits.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarmflow.compute.blocks import BLOCK_ELEMENTS, grid_blocks
from swarmflow.compute.kernels import in_parts, library

_THREAD_BLOCKS_MIN: Final = 128  # for fewer another thread takes longer to begin than to code


class MomentsKernel:
    """The functions of moments.c, of tensors in memory. Tables: of moments._Table."""

    def __init__(self, found: ctypes.CDLL) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._encode, self._decode = found.swarmflow_encode, found.swarmflow_decode
        self._encode.argtypes = (pointer, size, pointer, pointer, ctypes.c_int, pointer, pointer)
        self._decode.argtypes = (pointer, pointer, size, pointer, pointer)
        self._encode.restype = self._decode.restype = None

    def encode(
        self, values: Tensor, lowest: npt.NDArray[np.uint8], ends: npt.NDArray[np.float32], zero: int
    ) -> tuple[Tensor, Tensor]:
        """Return the codes of fp32 numbers [n], uint8 [n], and the scales of their blocks, fp32 [blocks]."""
        values, elements = values.contiguous(), values.numel()
        codes = torch.empty(elements, dtype=torch.uint8)
        scales = torch.empty(grid_blocks(elements))

        def part(first: int, count: int) -> None:
            start, stop = _elements(first, count, elements)
            tables = lowest.ctypes.data, ends.ctypes.data, zero
            made = codes[start:].data_ptr(), scales[first:].data_ptr()
            self._encode(values[start:].data_ptr(), stop - start, *tables, *made)

        _in_blocks(elements, part)
        return codes, scales

    def decode(self, codes: Tensor, scales: Tensor, by_code: npt.NDArray[np.float32]) -> Tensor:
        """Return the fp32 numbers [n] of codes, uint8 [n]. scales: fp32 [blocks]."""
        codes, scales, elements = codes.contiguous(), scales.contiguous(), codes.numel()
        values = torch.empty(elements)

        def part(first: int, count: int) -> None:
            start, stop = _elements(first, count, elements)
            given = codes[start:].data_ptr(), scales[first:].data_ptr()
            self._decode(*given, stop - start, by_code.ctypes.data, values[start:].data_ptr())

        _in_blocks(elements, part)
        return values


def _elements(first: int, count: int, elements: int) -> tuple[int, int]:
    return first * BLOCK_ELEMENTS, min((first + count) * BLOCK_ELEMENTS, elements)


def _in_blocks(elements: int, part: Callable[[int, int], None]) -> None:
    blocks = grid_blocks(elements)
    in_parts(blocks, min(torch.get_num_threads(), blocks // _THREAD_BLOCKS_MIN), part)


@lru_cache(maxsize=1)
def moments_kernel() -> MomentsKernel | None:
    """Return the kernel; None: there was no compiler when swarmflow was installed."""
    found = library("_moments")
    return None if found is None else MomentsKernel(found)
