"""Blocks of integers take as many bits as their largest one needs, and come back as they were."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from swarmflow.compute.blocks import BLOCK_ELEMENTS
from swarmflow.compute.packed_integers import WIDTHS, pack_blocks, unpack_blocks
from swarmflow.errors import FrameError


def block(largest: int, least: int = 0) -> Tensor:
    """Integers of a block, from the least to the largest."""
    return torch.linspace(least, largest, BLOCK_ELEMENTS).round().to(torch.int16)


@pytest.mark.parametrize(
    ("largest", "least", "width"),
    [
        (0, 0, 0),
        (0, -1, 4),
        (7, -8, 4),
        (8, 0, 8),
        (0, -9, 8),
        (127, -128, 8),
        (128, 0, 9),
        (255, -256, 9),
        (256, 0, 10),
        (511, -512, 10),
        (512, 0, 12),
        (2047, -2048, 12),
        (2048, 0, 16),
        (0, -2049, 16),
        (32767, -32768, 16),
    ],
)
def test_a_block_takes_the_bits_that_its_largest_integer_needs(largest: int, least: int, width: int) -> None:
    integers = block(largest, least)
    *parts, places = pack_blocks(integers)
    assert sum(part.numel() for part in parts) == 32 * width
    assert [WIDTHS[place] for place in places.tolist()] == [width]
    found, before = unpack_blocks(torch.cat([torch.ones(3, dtype=torch.uint8), *parts, places]), 1)
    assert torch.equal(found, integers)
    assert before.tolist() == [1, 1, 1]


@given(st.lists(st.integers(0, 15), max_size=12), st.integers(0, 2**32 - 1))
def test_blocks_of_any_widths_come_back_in_their_places(bits: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(-(1 << b), 1 << b, (BLOCK_ELEMENTS,), generator=generator) for b in bits]
    integers = torch.cat([torch.zeros(0), *rows]).to(torch.int16)
    found, before = unpack_blocks(torch.cat(pack_blocks(integers)), len(bits))
    assert torch.equal(found, integers)
    assert not before.numel()


@given(st.binary(max_size=3000), st.integers(0, 4))
def test_any_bytes_are_blocks_or_are_refused(data: bytes, blocks: int) -> None:
    raw = torch.tensor(list(data), dtype=torch.uint8)
    try:
        found, before = unpack_blocks(raw, blocks)
    except FrameError:
        return
    assert found.numel() == blocks * BLOCK_ELEMENTS
    assert before.numel() <= raw.numel() - blocks


def test_what_is_too_short_or_has_no_such_width_is_refused() -> None:
    *parts, places = pack_blocks(block(500))
    for broken in ([parts[0][1:], *parts[1:], places], [places[:0]], [*parts, places + len(WIDTHS)]):
        with pytest.raises(FrameError):
            unpack_blocks(torch.cat(broken), 1)
