"""How many bytes a piece of an all-reduce may have."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PieceFormat:
    """The bytes of a piece: so many for each element, and for each block of elements.

    usual_bits: of an element, where a block is sent in as many bits as its elements need, at most element_bytes, and a
    byte more tells how many those are; 0: elements are sent as they are. wide_bytes: what a block may take in addition,
    where its sums need still more; 0: none does. In the first steps, before anything is known of the gradients, an
    element may take others, and neither is the case. Defaults: fp32.
    """

    element_bytes: int = 4
    first_element_bytes: int = 4
    block_elements: int = 1
    block_bytes: int = 0
    usual_bits: float = 0.0
    wide_bytes: int = 0
    first_steps: int = 1  # how many those are

    def usual_bytes(self, elements: int, step: int | None = None) -> int:
        """Return about how many bytes a piece of so many elements has. None: in a step after the first ones."""
        blocks = -(-elements // self.block_elements)
        if step is not None and step < self.first_steps:
            return self.first_element_bytes * elements + self.block_bytes * blocks
        if not self.usual_bits:
            return self.element_bytes * elements + self.block_bytes * blocks
        return round(self.usual_bits * elements / 8) + (self.block_bytes + 1) * blocks

    def fits(self, step: int, elements: int, size_bytes: int) -> bool:
        """Return whether a piece of so many elements can have so many bytes in this step."""
        if step < self.first_steps or not self.usual_bits:
            return size_bytes == self.usual_bytes(elements, step)
        blocks, least_bytes = -(-elements // self.block_elements), self.block_bytes + 1
        most_bytes = least_bytes + self.element_bytes * self.block_elements + self.wide_bytes
        return least_bytes * blocks <= size_bytes <= most_bytes * blocks


FP32 = PieceFormat()
INT64 = PieceFormat(element_bytes=8, first_element_bytes=8)
# Sums in 16 bits, and 32 in the first step; the largest gradient of a block; 64-bit sums and the number of a wide one.
# The usual bits are measured (docs/decisions/reduce-codec.md; benchmarks.step_bytes: 1.24 bytes an element in all).
BLOCKWISE16 = PieceFormat(element_bytes=2, block_elements=256, block_bytes=4, usual_bits=10.0, wide_bytes=8 * 256 + 4)
BY_CODEC = {"none": FP32, "blockwise16": BLOCKWISE16}


def piece_format(codec: str, delay: int) -> PieceFormat:
    """Return the format of a codec. With delayed updates the gradients of the second step are not known earlier."""
    return replace(BY_CODEC[codec], first_steps=1 + delay)
