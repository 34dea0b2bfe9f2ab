"""Numbers in 4 bits: NF4, the quantiles of a normal distribution (Dettmers et al., QLoRA, 2023, section 3).

Blocks of 64 numbers share a scale, their largest absolute value. A number is divided by it, and the nearest of 16 codes
is stored, the lower one where both are as near: made of operations that round alike everywhere, so that every machine
makes the same bytes of a tensor. Two codes are in a byte, the first one in its upper half, as bitsandbytes has them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from swarmflow.compute.layout_types import NF4_BLOCK

CHUNK_ELEMENTS = 1 << 20  # made of codes at a time: whole blocks, and whole bytes
# bitsandbytes.functional.get_4bit_type("nf4")
CODES = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


def scales_of(values: Tensor) -> Tensor:
    """Return the scales, fp32 [ceil(n / 64)], of n numbers on the CPU."""
    return _in_blocks(values).abs().amax(dim=1)


def quantize(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes, uint8 [ceil(n / 2)], and scales, fp32 [ceil(n / 64)], of n numbers on the CPU."""
    padded, count = _in_blocks(values), values.numel()
    scales = padded.abs().amax(dim=1)
    shares = padded / torch.where(scales > 0, scales, torch.ones(())).unsqueeze(1)
    table = torch.tensor(CODES, dtype=torch.float64)
    middles = ((table[1:] + table[:-1]) / 2).float()
    codes = torch.bucketize(shares, middles).to(torch.uint8).view(-1)[: count + count % 2]
    return (codes[::2] << 4) | codes[1::2], scales


def _in_blocks(values: Tensor) -> Tensor:
    """Return numbers in fp32 [blocks, 64], with zeros behind the last one."""
    flat = values.detach().reshape(-1).float()
    return nn.functional.pad(flat, (0, -flat.numel() % NF4_BLOCK)).view(-1, NF4_BLOCK)


@torch.no_grad()
def dequantize(codes: Tensor, scales: Tensor, shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return the numbers of codes and scales, as `quantize` gives them; little memory beside these is taken."""
    table = torch.tensor(CODES, dtype=torch.float32, device=codes.device)
    pairs = torch.stack((table.repeat_interleave(16), table.repeat(16)), dim=1)  # of each byte
    count = math.prod(shape)
    values = torch.empty(count, dtype=dtype, device=codes.device)
    for start in range(0, count, CHUNK_ELEMENTS):
        stop = min(start + CHUNK_ELEMENTS, count)
        here = pairs[codes[start // 2 : -(-stop // 2)].int()].view(-1)[: stop - start]
        here = nn.functional.pad(here, (0, -len(here) % NF4_BLOCK)).view(-1, NF4_BLOCK)
        here = here * scales[start // NF4_BLOCK : -(-stop // NF4_BLOCK)].unsqueeze(1)
        values[start:stop] = here.view(-1)[: stop - start]
    return values.view(shape)


class _Product(torch.autograd.Function):
    """x W^T with a frozen W in 4 bits: the numbers of W exist while a pass uses them, and are not kept between two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scales: Tensor, shape: tuple[int, int]) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(codes, scales)
        ctx.shape = shape
        return x @ dequantize(codes, scales, shape, x.dtype).T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        codes, scales = ctx.saved_tensors
        [gradient] = gradients
        return gradient @ dequantize(codes, scales, ctx.shape, gradient.dtype), None, None, None


class FrozenLinear(nn.Module):
    """A linear layer with a frozen matrix in 4 bits."""

    def __init__(self, codes: Tensor, scales: Tensor, bias: nn.Parameter | None, shape: tuple[int, int]) -> None:
        """codes, scales: as `quantize` gives them, of a matrix of this shape, [out, in]."""
        super().__init__()
        self._codes, self._scales, self._shape = codes, scales, shape
        self.bias = bias
        self.in_features, self.out_features = shape[1], shape[0]

    @property
    def weight(self) -> Tensor:
        """The matrix, made of its codes: for code that looks at its shape, dtype or device."""
        return dequantize(self._codes, self._scales, self._shape, torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], in the dtype of autocast, or else of x."""
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        with torch.autocast(kind, enabled=False):
            multiply: Any = _Product.apply  # untyped in torch
            product: Tensor = multiply(x.to(dtype), self._codes, self._scales, self._shape)
            return product if self.bias is None else product + self.bias.to(dtype)
