"""The blocks of a flat tensor: neighbouring elements whose gradients are rounded to one spacing."""

from __future__ import annotations

from typing import Final

BLOCK_ELEMENTS: Final = 256


def grid_blocks(elements: int) -> int:
    """Return the number of blocks of a flat tensor; the last one may be shorter."""
    return -(-elements // BLOCK_ELEMENTS)
