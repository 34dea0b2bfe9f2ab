"""Integers of 16 bits in no more bits than the largest of their block needs: sums are small most of the time."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from swarmflow.compute.blocks import BLOCK_ELEMENTS
from swarmflow.errors import FrameError

# Bits of an element that a block may have. Each is made of whole bytes and a field of 1, 2, 4 or 8 bits, of which so
# many fill a byte: a handful of passes over memory.
WIDTHS = (0, 4, 8, 9, 10, 12, 16)
USUAL_BITS = 10.0  # of an element of a sum of gradients: docs/decisions/reduce-codec.md
_LARGEST = tuple((1 << (width - 1)) - 1 for width in WIDTHS[1:-1])  # of the widths between the first and the last


def pack_blocks(integers: Tensor) -> list[Tensor]:
    """Return uint8 tensors: the blocks, those of one width after those of a smaller one, and the widths of all blocks.

    integers: int16 [n * 256]. A width is given by its place in WIDTHS.
    """
    rows = integers.view(-1, BLOCK_ELEMENTS)
    largest, least = rows.amax(dim=1), rows.amin(dim=1)
    magnitudes = torch.maximum(largest, least.bitwise_not())  # of a negative number, one less
    edges = torch.tensor(_LARGEST, dtype=torch.int16, device=rows.device)
    places = torch.bucketize(magnitudes, edges).add_(1).mul_((largest != 0) | (least != 0))
    counts = places.bincount(minlength=len(WIDTHS)).tolist()
    parts = rows.index_select(0, places.argsort(stable=True)).split(counts)
    packed = [_packed(part, width) for part, width in zip(parts, WIDTHS, strict=True) if len(part) and width]
    return [*itertools.chain(*packed), places.to(torch.uint8)]


def unpack_blocks(packed: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Return the integers of blocks that were packed, int16 [blocks * 256], and what comes before them.

    packed: uint8, which ends with them. Raises FrameError for what is none of their packings.
    """
    if packed.numel() < blocks:
        raise FrameError(f"{blocks} blocks in {packed.numel()} bytes")
    before, places = packed.split([packed.numel() - blocks, blocks])
    if blocks and int(places.max()) >= len(WIDTHS):
        raise FrameError(f"a block has the width {int(places.max())}, of {len(WIDTHS)}")
    counts = places.int().bincount(minlength=len(WIDTHS)).tolist()
    sizes = [count * width * BLOCK_ELEMENTS // 8 for count, width in zip(counts, WIDTHS, strict=True)]
    if sum(sizes) > before.numel():
        raise FrameError(f"blocks of {sum(sizes)} bytes in {before.numel()}")
    before, *parts = before.split([before.numel() - sum(sizes), *sizes])
    zeros = torch.zeros((counts[0], BLOCK_ELEMENTS), dtype=torch.int16, device=packed.device)
    rows = [_unpacked(part, width) for part, width in zip(parts[1:], WIDTHS[1:], strict=True) if part.numel()]
    # Rows are chosen ten times as fast as they are put into their places.
    return torch.cat([zeros, *rows]).index_select(0, places.argsort(stable=True).argsort()).flatten(), before


def _packed(rows: Tensor, width: int) -> list[Tensor]:
    """Return int16 rows [n, 256] as uint8: of all rows the low bytes, then the high bits; of fewer than 8, these."""
    low = rows.to(torch.uint8)  # modulo 256
    if width < 8:
        return [_folded(low, width).flatten()]
    if width == 8:
        return [low.flatten()]
    return [low.flatten(), _folded((rows >> 8).to(torch.uint8), width - 8).flatten()]


def _unpacked(packed: Tensor, width: int) -> Tensor:
    """Return int16 [n, 256] of the uint8 [n * 32 * width] of so many rows."""
    if width < 8:
        return _extended(_unfolded(packed.view(-1, 32 * width), width), width)
    if width == 8:
        return packed.view(torch.int8).view(-1, BLOCK_ELEMENTS).to(torch.int16)
    count = packed.numel() // (32 * width)
    low, high = packed.split([count * BLOCK_ELEMENTS, count * 32 * (width - 8)])
    rows = _extended(_unfolded(high.view(count, -1), width - 8), width - 8)
    return rows.bitwise_left_shift_(8).bitwise_or_(low.view(count, -1).to(torch.int16))


def _folded(values: Tensor, bits: int) -> Tensor:
    """Return the last bits of uint8 [n, 256] as uint8 [n, 32 * bits]."""
    if bits == 8:
        return values
    fields = values.bitwise_and((1 << bits) - 1).view(len(values), 8 // bits, -1)
    folded = fields[:, 0].clone()
    for place in range(1, 8 // bits):
        folded |= fields[:, place] << (bits * place)
    return folded


def _unfolded(folded: Tensor, bits: int) -> Tensor:
    """Return uint8 [n, 256], each below 2 to the bits."""
    if bits == 8:
        return folded
    fields = [(folded >> (bits * place)).bitwise_and_((1 << bits) - 1) for place in range(8 // bits)]
    return torch.cat(fields, dim=1)


def _extended(values: Tensor, bits: int) -> Tensor:
    """Return uint8 numbers of so many bits, the first of which is their sign, as int16."""
    sign = 1 << (bits - 1)
    return values.bitwise_xor(sign).sub_(sign).view(torch.int8).to(torch.int16)  # modulo 256
