"""The cross-entropy of many words, with its gradient computed in the same pass over the logits.

torch's own keeps the logits, their fp32 copy and its log-softmax until the backward pass, which makes a gradient beside
them. With 131,072 words these passes over memory took a tenth of the head's time in bf16 (`benchmarks.head`).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from swarmflow.targets import IGNORED

# Elements of a slice that is processed at once: 1 MiB in fp32, which stays in a cache. A device prefers fewer calls.
_SLICE_ELEMENTS, _DEVICE_SLICE_ELEMENTS = 1 << 18, 1 << 24


def cross_entropy_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the cross-entropies, a scalar in fp32. It can be differentiated once.

    logits: [n, V], of any floating dtype, in which the gradient is too. targets: int64 [n]; of one that is IGNORED
    there is neither loss nor gradient.
    """
    total: Tensor = _CrossEntropySum.apply(logits, targets)  # type: ignore[no-untyped-call]
    return total


class _Context(Protocol):
    """What the passes hand over. gradient: of the logits, where it is wanted, for a loss that counts once."""

    needs_input_grad: tuple[bool, ...]
    gradient: Tensor | None


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, logits: Tensor, targets: Tensor) -> Tensor:
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        elements = _SLICE_ELEMENTS if logits.device.type == "cpu" else _DEVICE_SLICE_ELEMENTS
        rows = max(1, elements // logits.shape[-1])
        total = torch.zeros((), dtype=torch.float32, device=logits.device)
        for start in range(0, len(targets), rows):
            where = slice(start, start + rows)
            total += _slice(logits[where], targets[where], None if gradient is None else gradient[where])
        ctx.gradient = gradient
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, factor: Tensor) -> tuple[Tensor, None]:
        gradient, ctx.gradient = ctx.gradient, None
        assert gradient is not None, "one backward pass"
        return gradient.mul_(factor), None


def _slice(logits: Tensor, targets: Tensor, gradient: Tensor | None) -> Tensor:
    """Return the sum of some rows' cross-entropies; write the gradient of their logits, where it is wanted."""
    counted = targets != IGNORED
    wanted = targets.clamp(min=0).unsqueeze(1)
    logs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    losses = logs.gather(1, wanted).squeeze(1)
    if gradient is not None:
        shares = logs.exp_()
        shares.scatter_add_(1, wanted, torch.full_like(wanted, -1, dtype=torch.float32))
        torch.mul(shares, counted.unsqueeze(1), out=gradient)
    return torch.where(counted, -losses, 0.0).sum()
