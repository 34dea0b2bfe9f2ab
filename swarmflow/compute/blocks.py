"""The blocks of a flat tensor: neighbouring elements whose gradients are rounded to one spacing."""

from __future__ import annotations

from typing import Final

BLOCK_ELEMENTS: Final = 256


def grid_blocks(elements: int) -> int:
    """Return the number of blocks of a flat tensor; the last one may be shorter."""
    return -(-elements // BLOCK_ELEMENTS)


def alignment(state_bits: int) -> int:
    """Return of what every parameter's first element in the flat buffers is a multiple. state_bits: of the moments.

    Moments of 8 bits have a scale a block, and so each parameter begins at the edge of one: a block belongs to one
    parameter, which takes it along wherever the model is cut, and which is updated alone where the optimizer does so.
    """
    return BLOCK_ELEMENTS if state_bits == 8 else 1
