"""Sums on a grid: the same in any order, near the true ones, and of the format that the core expects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarmflow.compute.blocks import BLOCK_ELEMENTS, grid_blocks
from swarmflow.compute.blockwise_sums import BlockwiseSums
from swarmflow.compute.exact import EXPONENT, ExponentOverflowError
from swarmflow.compute.grid import ADDENDS_MAX, DITHER_ELEMENTS, FIRST_EXPONENT, WIDE_BITS, Blockwise, Grid, dither
from swarmflow.compute.packed_integers import USUAL_BITS, pack_blocks
from swarmflow.core.protocol.piece_format import BLOCKWISE16
from swarmflow.errors import FrameError

CPU = torch.device("cpu")
ELEMENTS = 3 * BLOCK_ELEMENTS + 57
N = 8
BLOCK_BYTES = 5  # of a block beside its sums


def gradients(seed: int, scale: float = 1e-3, count: int = N, elements: int = ELEMENTS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, generator=generator) * scale for _ in range(count)]


def padded(gradient: Tensor) -> Tensor:
    return torch.nn.functional.pad(gradient, (0, grid_blocks(len(gradient)) * BLOCK_ELEMENTS - len(gradient)))


def add(sums: BlockwiseSums, gradient: Tensor, number: int, weight: int = 1) -> None:
    given_ = padded(gradient)
    sums.add(given_, weight, number)
    assert torch.equal(given_[: len(gradient)], gradient), "autograd may have handed out the same memory twice"


def sums_of(grid: Grid, addends: Sequence[tuple[int, Tensor]]) -> BlockwiseSums:
    found = BlockwiseSums(grid, len(addends[0][1]) if addends else ELEMENTS)
    for number, gradient in addends:
        add(found, gradient, number)
    return found


def empty(elements: int = ELEMENTS, addends: int = N) -> Grid:
    return Grid.empty(elements, Blockwise(addends), addends, CPU)


def grid_after(addends: Sequence[Tensor], limit: int = N) -> Grid:
    """The grid that follows from a first step with these gradients."""
    grid = empty(len(addends[0]), limit)
    sums = sums_of(grid, list(enumerate(addends)))
    spacing = 2.0 ** (FIRST_EXPONENT - EXPONENT)
    torch.testing.assert_close(sums[:], torch.stack(list(addends)).sum(0), rtol=0.0, atol=len(addends) * spacing)
    grid.follow(sums.peaks, 0)
    return grid


def exact(grid: Grid, addends: Sequence[tuple[int, Tensor]]) -> list[Fraction]:
    """The same sums by the rule alone: floor(gradient / spacing + dither), added as integers of any size."""
    spacings, totals = grid.present().tolist(), [0] * len(addends[0][1])
    for number, gradient in addends:
        offsets = dither(number, CPU).tolist()
        for element, value in enumerate(gradient.tolist()):
            scaled = np.float32(value / spacings[element // BLOCK_ELEMENTS])
            totals[element] += int(np.floor(scaled + np.float32(offsets[element % DITHER_ELEMENTS])))
    return [total * Fraction(spacings[at // BLOCK_ELEMENTS]) for at, total in enumerate(totals)]


@pytest.mark.parametrize("first", [False, True], ids=["later", "first step"])
def test_the_sum_is_that_of_the_rule_whoever_adds_what_and_in_whatever_order(first: bool) -> None:
    grid = empty() if first else grid_after(gradients(0))
    addends = list(enumerate(gradients(1), 5 * N))
    addends[3][1][300:310] *= 1e5  # too large for 16 bits
    wanted = [float(each) for each in exact(grid, addends)]
    packed = set()
    for seed in range(4):
        random = Random(seed)
        random.shuffle(addends)
        members = [sums_of(grid, addends[at::3]) for at in range(3)]
        total = BlockwiseSums(grid, ELEMENTS)
        total.total(0, ELEMENTS, [members[0], *(member.pack(0, ELEMENTS) for member in members[1:])])
        assert total[:].double().tolist() == pytest.approx(wanted, rel=1e-7, abs=0.0)
        packed.add(bytes(total.pack(0, ELEMENTS)))
    assert len(packed) == 1


def test_blocks_are_rounded_alike_wherever_the_parts_begin_in_which_they_are_added() -> None:
    """As parameters do; the blocks are more than are rounded at a time, and some of the last ones are wide."""
    blocks = 700
    whole, parts = (BlockwiseSums(grid_after(gradients(0, count=1, elements=blocks * 256)), blocks * 256) for _ in "12")
    gradient = gradients(1, count=1, elements=blocks * 256)[0].view(blocks, 256)
    gradient[[20, 300, 650]] *= 1e5
    whole.add(gradient, 1, 77)
    for start, stop in ((0, 5), (5, 290), (290, 291), (291, 700)):
        parts.add(gradient[start:stop].flatten(), 1, 77, start)
    assert bytes(parts.pack(0, blocks * 256)) == bytes(whole.pack(0, blocks * 256))


def test_what_is_taken_away_leaves_no_trace_in_the_sums() -> None:
    grid, addends = grid_after(gradients(0)), list(enumerate(gradients(1)))
    addends[2][1][:] *= 1e5
    once = sums_of(grid, addends)
    twice = sums_of(grid, [*addends, *addends[2:5]])
    for number, gradient in addends[2:5]:
        add(twice, gradient, number, weight=-1)
    assert bytes(once.pack(0, ELEMENTS)) == bytes(twice.pack(0, ELEMENTS))


def test_a_small_gradient_in_each_microbatch_is_not_lost() -> None:
    """Rounded to the nearest it would be 0 in each of them."""
    count = 256
    first = gradients(0, count=1)[0]
    grid = grid_after([first] * 4, limit=count)
    spacing = float(grid.spacings[0])
    small = torch.full((ELEMENTS,), 0.3 * spacing)
    sums = sums_of(grid, [(number, small) for number in range(1000, 1000 + count)])
    error = (sums[:BLOCK_ELEMENTS].double() / spacing - 0.3 * count).abs().max()
    assert error < 3, "in units of the spacing, of which the sum has 77"


def test_the_rounding_of_random_gradients_adds_little_noise() -> None:
    """Beside what the microbatches' gradients differ by anyway: less than 1% of the variance of their mean."""
    count, elements = 256, 64 * BLOCK_ELEMENTS
    grid = grid_after(gradients(0, count=4, elements=elements), limit=count)
    addends = gradients(1, count=count, elements=elements)
    error = sums_of(grid, list(enumerate(addends)))[:].double() - torch.stack(addends).double().sum(0)
    sampling = torch.stack(addends).double().var(0).mean() * count
    assert float(error.square().mean() / sampling) < 0.01
    assert abs(float(error.mean())) < float(error.std()) / elements**0.5 * 4, "it favours neither direction"


@pytest.mark.extended
@given(st.integers(0, 2**40), st.integers(1, 2000))
@settings(max_examples=30)
def test_the_dither_is_spread_evenly_over_every_stretch_of_microbatches(first: int, count: int) -> None:
    values = torch.stack([dither(number, CPU)[:4] for number in range(first, first + count)])
    assert bool((values >= 0).all() and (values < 1).all())
    for column in values.T:
        discrepancy = (column.sort().values - torch.arange(count) / count).abs().max()
        assert float(discrepancy) < 3 * (1 + np.log(count)) / count


def test_every_element_has_a_place_of_its_own_in_the_sequence() -> None:
    assert len(dither(7, CPU).unique()) == DITHER_ELEMENTS
    assert not torch.equal(dither(7, CPU), dither(8, CPU))


def test_no_sum_of_what_fits_overflows_16_bits() -> None:
    for addends in (1, 7, 256, ADDENDS_MAX):
        grid = Grid(torch.ones(1), Blockwise(addends), addends)
        largest = torch.full((BLOCK_ELEMENTS,), float(grid.limit))
        sums = sums_of(grid, [(number, sign * largest) for sign in (1,) for number in range(addends)])
        assert len(sums.pack(0, BLOCK_ELEMENTS)) <= 2 * BLOCK_ELEMENTS + BLOCK_BYTES, "none is wide"
        assert sums[:1].item() >= addends * grid.limit
        assert sums_of(grid, [(number, -largest) for number in range(addends)])[:1].item() >= -addends * (grid.limit)


@pytest.mark.parametrize("elements", [1, BLOCK_ELEMENTS, ELEMENTS, 5 * BLOCK_ELEMENTS])
@pytest.mark.parametrize("wide", [False, True])
def test_a_packed_piece_has_the_format_that_the_core_expects_and_comes_back(elements: int, wide: bool) -> None:
    first, later = gradients(0, elements=elements), gradients(1, elements=elements)
    later[0][0] *= 1e6 if wide else 1.0
    for step, grid, addends in ((0, empty(elements), first), (1, grid_after(first), later)):
        sums = sums_of(grid, list(enumerate(addends)))
        packed = sums.pack(0, elements)
        assert BLOCKWISE16.fits(step, elements, len(packed))
        narrow_bytes = (2 * BLOCK_ELEMENTS + BLOCK_BYTES) * grid_blocks(elements)
        assert (len(packed) > narrow_bytes) == wide or step == 0
        other = sums.empty()
        other.put(0, elements, packed)
        assert torch.equal(other[:], sums[:])
        assert torch.equal(other.peaks, sums.peaks)
        assert bytes(other.pack(0, elements)) == bytes(packed)
        apart = sums.empty(elements)
        apart.total(0, elements, [packed, packed])
        assert BLOCKWISE16.fits(step, elements, len(apart.pack(0, elements)))


def test_a_piece_of_a_wrong_size_is_refused_and_any_other_is_one() -> None:
    grid = grid_after(gradients(0))
    sums = BlockwiseSums(grid, ELEMENTS)
    least, most = BLOCK_BYTES * 4, (BLOCK_BYTES + 2 * BLOCK_ELEMENTS + 2052) * 4
    for size in (0, least - 1, least + 1, most + 1, most + 2052):  # of zeros: four blocks in which nothing is
        assert BLOCKWISE16.fits(1, ELEMENTS, size) == (size == least + 1)
        with pytest.raises(FrameError, match="bytes"):
            sums.put(0, ELEMENTS, bytearray(size))
    random = Random(0)
    for wide in range(5):
        size = least + 2052 * wide
        assert BLOCKWISE16.fits(1, ELEMENTS, size)
        sums.put(0, ELEMENTS, bytearray(random.randbytes(size - 4) + bytes(4)))
    with pytest.raises(FrameError, match="bytes"):
        sums.put(0, ELEMENTS, bytearray(least + 2052 * 5))


def test_so_is_one_of_a_first_step() -> None:
    sums, whole = BlockwiseSums(empty(), ELEMENTS), 4 * ELEMENTS + 4 * 4
    for size in (0, whole - 4, whole - 1, whole + 1, whole + 2052):
        assert not BLOCKWISE16.fits(0, ELEMENTS, size)
        with pytest.raises(FrameError, match="bytes"):
            sums.put(0, ELEMENTS, bytearray(size))
    assert BLOCKWISE16.fits(0, ELEMENTS, whole)
    sums.put(0, ELEMENTS, bytearray(whole))


def test_the_core_expects_the_usual_number_of_bits() -> None:
    assert BLOCKWISE16.usual_bits == USUAL_BITS


def test_what_stands_behind_the_last_element_counts_for_nothing() -> None:
    sums = BlockwiseSums(grid_after(gradients(0)), ELEMENTS)
    before = bytes(sums.pack(0, ELEMENTS))
    narrow = torch.zeros(4 * BLOCK_ELEMENTS, dtype=torch.int16)
    narrow[ELEMENTS:] = 7
    packed = b"".join(bytes(part.numpy()) for part in (torch.zeros(4), *pack_blocks(narrow)))
    sums.put(0, ELEMENTS, bytearray(packed))
    assert bytes(sums.pack(0, ELEMENTS)) == before


def test_the_grid_follows_the_peaks_up_at_once_and_down_by_a_half_in_four_steps() -> None:
    grid = empty(2 * BLOCK_ELEMENTS)
    grid.follow(torch.tensor([1.0, 0.0]), 0)
    assert grid.known
    begun = grid.spacings.clone()
    assert begun[0] == begun[1], "a block without a gradient begins like the others"
    assert 16 <= grid.limit * begun[0] <= 32, "headroom"
    for step in (1, 2, 3):
        grid.follow(torch.tensor([1e-6, 0.0]), step)
        assert grid.spacings.tolist() == begun.tolist()
    grid.follow(torch.tensor([1e-6, 0.0]), 4)
    assert grid.spacings.tolist() == [begun[0] / 2, begun[1]]
    grid.follow(torch.tensor([1024.0, 1.0]), 5)
    assert grid.spacings.tolist() == [1024 * begun[0], begun[1]]


def test_what_cannot_be_added_is_told() -> None:
    grid = grid_after(gradients(0))
    fine = padded(gradients(1)[0])
    for step, far in ((empty(), 2.0**32 / N), (grid, 2.0 ** (WIDE_BITS + 1))):
        sums = BlockwiseSums(step, ELEMENTS)
        sums.add(fine, 1, 0)
        before = bytes(sums.pack(0, ELEMENTS))
        for value in (float("nan"), float("inf"), far * float(step.present().max())):
            broken = fine.clone()
            broken[300] = value
            with pytest.raises(ExponentOverflowError) as raised:
                sums.add(broken, 1, 1)
            assert raised.value.finite == (step is not grid and math.isfinite(value)), "a smaller exponent would help"
            assert bytes(sums.pack(0, ELEMENTS)) == before, "nothing is added"


def test_a_smaller_exponent_makes_room_in_the_first_step() -> None:
    grid, large = empty(), padded(torch.full((ELEMENTS,), 1e10))
    grid.rounding.exponent = EXPONENT - 16
    sums = BlockwiseSums(grid, ELEMENTS)
    with pytest.raises(ExponentOverflowError):
        sums.add(large, 1, 3)
    grid.rounding.exponent = EXPONENT - 32
    sums.zero()
    add(sums, large[:ELEMENTS].clone(), 3)
    assert sums[:].tolist() == pytest.approx([1e10] * ELEMENTS, rel=1e-3)


def test_what_is_stored_is_the_gradient_and_the_peaks() -> None:
    grid, addends = grid_after(gradients(0)), list(enumerate(gradients(1)))
    addends[0][1][7] = 1e4
    sums = sums_of(grid, addends)
    stored, again = sums.storable(), BlockwiseSums(empty(), ELEMENTS).storable()
    for name, tensor in again.stored().items():
        tensor.copy_(stored.stored()[name])
    assert torch.equal(again.flat, sums[:])
    assert torch.equal(again.peaks, sums.peaks)
    assert again.sum_of_squares() == sums.sum_of_squares()
