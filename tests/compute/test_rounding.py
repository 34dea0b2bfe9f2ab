"""Gradients rounded to a grid: by the compiled kernel as by torch, and by both as the rule says."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarmflow.compute.blocks import BLOCK_ELEMENTS
from swarmflow.compute.grid import DITHER_ELEMENTS, dither
from swarmflow.compute.rounding import add_rounded, block_peaks, compiled, rounded

CPU = torch.device("cpu")
DITHER_ROWS = DITHER_ELEMENTS // BLOCK_ELEMENTS


def by_the_rule(rows: Tensor, scales: Tensor, first: int, number: int) -> Tensor:
    """floor(gradient * scale + dither), int64, with numpy."""
    offsets = dither(number, CPU).view(DITHER_ROWS, BLOCK_ELEMENTS)[(first + torch.arange(len(rows))) % DITHER_ROWS]
    return torch.from_numpy(np.floor(rows.numpy() * scales.numpy()[:, None] + offsets.numpy()).astype(np.int64))


def test_an_installation_with_a_compiler_has_the_kernel() -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc) here: torch rounds")
    assert compiled()


@given(
    st.integers(1, 40),
    st.integers(0, 3 * DITHER_ROWS),
    st.integers(0, 1 << 20),
    st.sampled_from([1, -1]),
    st.integers(0, 1 << 30),
)
@settings(max_examples=60)
def test_the_kernel_rounds_as_torch_does_and_as_the_rule_says(
    count: int, first: int, number: int, weight: int, seed: int
) -> None:
    """Sums of 16 bits are the kernel's, where there is one; those of 32 bits are torch's."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-30, 31, (count,), generator=generator)
    scales = torch.ldexp(torch.ones(count), exponents)
    rows = torch.randn(count, BLOCK_ELEMENTS, generator=generator) * 100 / scales.unsqueeze(1)
    rows[torch.rand(rows.shape, generator=generator) < 0.1] = 0.0
    rows[0, :4] = torch.tensor([1e-45, -1e-45, -1e-38, -0.0])  # below fp32's normal numbers
    scales[-1] = 0.0  # of a block that is added elsewhere
    before, given_ = torch.randint(-9000, 9000, rows.shape, generator=generator), rows.clone()
    wanted = before + weight * by_the_rule(rows, scales, first, number)
    for dtype in (torch.int16, torch.int32):
        sums = before.to(dtype)
        add_rounded(rows, scales, first, number, weight, sums)
        assert torch.equal(sums.long(), wanted)
    some = torch.randperm(count, generator=generator)[: count // 2 + 1]
    assert torch.equal(rounded(rows[some], scales[some], some + first, number).long() * weight, (wanted - before)[some])
    assert torch.equal(rows, given_), "autograd may have handed out the same memory twice"


@pytest.mark.usefixtures("threads")
def test_all_threads_together_round_every_row_once() -> None:
    count = 5003  # the parts are not of one size
    rows, scales = torch.randn(count, BLOCK_ELEMENTS), torch.full((count,), 64.0)
    sums = torch.zeros(count, BLOCK_ELEMENTS, dtype=torch.int16)
    add_rounded(rows, scales, 77, 5, 1, sums)
    assert torch.equal(sums.long(), by_the_rule(rows, scales, 77, 5))
    assert torch.equal(block_peaks(rows), rows.abs().amax(dim=1))


@pytest.mark.parametrize("value", [float("nan"), -float("nan"), float("inf"), -float("inf"), -3e38, 1e-45, -0.0])
def test_the_peak_of_a_block_tells_what_is_not_finite(value: float) -> None:
    rows = torch.full((3, BLOCK_ELEMENTS), 1e-46)
    rows[1, 200] = value
    wanted = np.abs(rows.numpy()).max(axis=1)
    np.testing.assert_array_equal(block_peaks(rows).numpy(), wanted)
