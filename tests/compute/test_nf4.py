"""Numbers in 4 bits: the codes of bitsandbytes, what a product and its gradient are made of."""

from __future__ import annotations

import random
from pathlib import Path

import bitsandbytes.functional as bnb
import pytest
import torch
from safetensors.torch import save_file

from swarmflow.compute.base_weights import FolderBase
from swarmflow.compute.flat_tensors import memory_of
from swarmflow.compute.layout_types import BaseSlot, StageLayout, placed
from swarmflow.compute.nf4 import CODES, FrozenLinear, dequantize, quantize


def test_codes_and_scales_are_those_of_bitsandbytes() -> None:
    assert bnb.get_4bit_type("nf4", device="cpu").tolist() == list(CODES)
    values = torch.randn(96, 128, generator=torch.Generator().manual_seed(0))
    values[3] = 0.0
    codes, scales = quantize(values)
    theirs, state = bnb.quantize_4bit(values, blocksize=64, quant_type="nf4")
    assert torch.equal(scales, state.absmax)
    ours, other = dequantize(codes, scales, values.shape, torch.float32), bnb.dequantize_4bit(theirs, state)
    assert (codes.view(-1) != theirs.view(-1)).float().mean() < 1e-3, "but for numbers in the middle between two codes"
    assert torch.allclose((ours - values).abs().sum(), (other - values).abs().sum(), rtol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 9), (5, 64), (2, 33)])
def test_any_shape_comes_back(shape: tuple[int, int]) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    codes, scales = quantize(values)
    assert codes.numel() == -(-values.numel() // 2)
    assert scales.numel() == -(-values.numel() // 64)
    found = dequantize(codes, scales, shape, torch.float32)
    blocks = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % 64)).view(-1, 64)
    largest = blocks.abs().amax(dim=1, keepdim=True).expand_as(blocks).reshape(-1)[: values.numel()].view(shape)
    assert bool(((found - values).abs() <= 0.16 * largest).all())


def test_any_bytes_of_matrices_in_a_folder_are_those_of_whole_ones(tmp_path: Path) -> None:
    shapes = {"a.w": (37, 24), "b.w": (128, 64), "c.w": (5, 8)}
    values = {name: torch.randn(shape, generator=torch.Generator().manual_seed(3)) for name, shape in shapes.items()}
    save_file(values, tmp_path / "model.safetensors")
    base = placed([BaseSlot(name, shape, "NF4", 0, (name,)) for name, shape in shapes.items()])
    layout = StageLayout(0, 1, {}, {}, "model", None, None, base=base)
    wanted = bytearray(layout.base_bytes)
    for slot in base:
        wanted[slot.offset : slot.offset + slot.nbytes] = b"".join(map(memory_of, quantize(values[slot.name])))
    source, draw = FolderBase(layout, tmp_path), random.Random(4)
    for _ in range(300):
        low, high = sorted(draw.choices(range(len(wanted) + 1), k=2))
        assert source.read(low, high) == wanted[low:high], (low, high)
    source.close()


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_layer_is_a_product_with_its_numbers(with_bias: bool) -> None:
    weight = torch.randn(6, 10, generator=torch.Generator().manual_seed(2))
    bias = torch.nn.Parameter(torch.randn(6), requires_grad=False) if with_bias else None
    layer = FrozenLinear(*quantize(weight), bias, (6, 10))
    x = torch.randn(2, 3, 10, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    plain = torch.nn.functional.linear(other, layer.weight, bias)
    found = layer(x)
    assert torch.allclose(found, plain, atol=1e-6)
    found.square().sum().backward()
    plain.square().sum().backward()
    assert x.grad is not None
    assert other.grad is not None
    assert torch.allclose(x.grad, other.grad, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
