"""How many bytes a piece of an all-reduce may have."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PieceFormat:
    """The bytes of a piece: so many for each element, and for each block of elements.

    In the first steps, before anything is known of the gradients, an element may take others. wide_bytes: what a block
    may take in addition, where its sums need more bits; 0: none does. Defaults: fp32.
    """

    element_bytes: int = 4
    first_element_bytes: int = 4
    block_elements: int = 1
    block_bytes: int = 0
    wide_bytes: int = 0
    first_steps: int = 1  # how many those are

    def least_bytes(self, step: int, elements: int) -> int:
        """Return the bytes of a piece of so many elements in this step, unless blocks of it are wide."""
        blocks = -(-elements // self.block_elements)
        element_bytes = self.first_element_bytes if step < self.first_steps else self.element_bytes
        return element_bytes * elements + self.block_bytes * blocks

    def usual_bytes(self, elements: int) -> int:
        """Return the same for a step after the first ones."""
        return self.least_bytes(self.first_steps, elements)

    def fits(self, step: int, elements: int, size_bytes: int) -> bool:
        """Return whether a piece of so many elements can have so many bytes in this step."""
        extra = size_bytes - self.least_bytes(step, elements)
        if step < self.first_steps or not self.wide_bytes:
            return extra == 0
        blocks = -(-elements // self.block_elements)
        return 0 <= extra <= self.wide_bytes * blocks and extra % self.wide_bytes == 0


FP32 = PieceFormat()
INT64 = PieceFormat(element_bytes=8, first_element_bytes=8)
# Sums in 16 bits, and 32 in the first step; the largest gradient of a block; 64-bit sums and the number of a wide one.
BLOCKWISE16 = PieceFormat(element_bytes=2, block_elements=256, block_bytes=4, wide_bytes=8 * 256 + 4)
BY_CODEC = {"none": FP32, "blockwise16": BLOCKWISE16}


def piece_format(codec: str, delay: int) -> PieceFormat:
    """Return the format of a codec. With delayed updates the gradients of the second step are not known earlier."""
    return replace(BY_CODEC[codec], first_steps=1 + delay)
