"""AdamW on CPUs by a kernel that the installation compiled: a block's update in one pass, with its checksums.

It gives the bits of the operations of torch in `optimizer.py`, in a third of their time (benchmarks/README.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from swarmflow.compute.kernels import in_parts, library
from swarmflow.compute.state_root import PIECE_ELEMENTS

_THREAD_PIECES_MIN: Final = 4  # for fewer another thread takes longer to begin than to update
_CONSTANTS: Final = ctypes.c_float * 10
_POINTERS: Final = ctypes.c_void_p * 3


class AdamWKernel:
    """The function of adamw.c, of tensors in memory."""

    def __init__(self, found: ctypes.CDLL) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        self._adamw = found.swarmflow_adamw
        self._adamw.argtypes = (*[pointer] * 4, size, size, *[pointer] * 3)
        self._adamw.restype = ctypes.c_int

    def update(
        self,
        tensors: Sequence[Tensor],
        gradient: Tensor,
        constants: Sequence[float],
        sums: Sequence[Sequence[Tensor]] | None,
    ) -> bool:
        """Update a range in place; return whether all that was computed is finite.

        tensors: parameters and both moments, fp32 [n]; gradient: fp32 [n]; all contiguous. constants: as in adamw.c.
        sums: int64 [pieces] of each of the three, before and after (see `piece_sums`), to be set; None: they are not
        wanted.
        """
        assert all(each.is_contiguous() for each in (*tensors, gradient)), "values one after the other"
        chosen, elements, is_finite = _CONSTANTS(*constants), gradient.numel(), True

        def part(first: int, count: int) -> None:
            nonlocal is_finite
            start, stop = first * PIECE_ELEMENTS, min((first + count) * PIECE_ELEMENTS, elements)
            values = [each[start:].data_ptr() for each in (*tensors, gradient)]
            kept = [None, None] if sums is None else [_POINTERS(*(s[first:].data_ptr() for s in each)) for each in sums]
            if not self._adamw(*values, stop - start, PIECE_ELEMENTS, chosen, *kept):
                is_finite = False

        pieces = -(-elements // PIECE_ELEMENTS)
        in_parts(pieces, min(torch.get_num_threads(), pieces // _THREAD_PIECES_MIN), part)
        return is_finite


@lru_cache(maxsize=1)
def adamw_kernel() -> AdamWKernel | None:
    """Return the kernel; None: there was no compiler when swarmflow was installed."""
    found = library("_adamw")
    return None if found is None else AdamWKernel(found)
