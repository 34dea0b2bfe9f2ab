"""Gradients added up as 64-bit integers, so that the sum is the same, bit for bit, in whatever order it is made.

The gradient g of one microbatch counts as trunc(g * 2^exponent). Integers add without rounding: peers and all-reduce
may add what they like when they like, and a microbatch that is taken away again leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from swarmflow.compute.device_work import DeviceWork
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.flat_tensors import Blocks, rounded_product

# Of the sum over a microbatch's tokens: finer than fp32 itself for gradients above 2^-12, and for smaller ones far
# below what an optimizer's eps lets through.
EXPONENT: Final = 36
# The total of a stage's step stays below 2^61 units, and that of weights which several stages have below 2^63.
TOTAL_BITS: Final = 61
STAGES_MAX: Final = 4  # that have the same weights
# For each thread: gradient, integers and total of a block stay near it, and few enough calls are made.
BLOCK_ELEMENTS: Final = 1 << 17
_DEVICE_BLOCK_ELEMENTS: Final = 1 << 24


class ExponentOverflowError(ArithmeticError):
    """A gradient of a microbatch is too large for the step's exponent or, where `finite` is False, is no number."""

    def __init__(self, *, finite: bool) -> None:
        super().__init__("a gradient is too large for the exponent" if finite else "a gradient is not finite")
        self.finite = finite


@dataclass
class FixedPoint:
    """How gradients become integers that may be added in any order.

    Every addend is smaller than 2^(61 - exponent) / `microbatches`, which is their number a step: so no order of
    additions can overflow, and whether an addend fits depends on it alone. exponent: of the step at hand.
    """

    microbatches: int
    exponent: int = EXPONENT

    @property
    def stages_max(self) -> int:
        """The most stages that may share weights: each adds up a total."""
        return STAGES_MAX

    @property
    def unit(self) -> float:
        """What 1 stands for in a total."""
        return 2.0**-self.exponent

    @property
    def limit(self) -> float:
        """Every addend is smaller than this."""
        return 2.0 ** (TOTAL_BITS - self.exponent) / self.microbatches

    def check(self, gradients: Sequence[Tensor], work: DeviceWork | None = None) -> None:
        """Raises ExponentOverflowError when one of these gradients (fp32 [elements]) does not fit.

        With a work that does not read at once all of them become zeros then, and the error, or NotFiniteError, comes
        when the work is done.
        """
        if work is not None and not work.at_once:
            self._check_queued([gradient for gradient in gradients if gradient.numel()], work)
            return
        for gradient in gradients:
            lowest, highest = torch.stack(torch.aminmax(gradient)).tolist() if gradient.numel() else (0.0, 0.0)
            # Not-a-number is handed on as both extremes, and no comparison with it is true.
            if not (-self.limit < lowest and highest < self.limit):
                raise ExponentOverflowError(finite=all(bool(torch.isfinite(each).all()) for each in gradients))

    @torch.no_grad()
    def _check_queued(self, gradients: Sequence[Tensor], work: DeviceWork) -> None:
        if not gradients:
            return
        extremes = torch.stack([extreme for gradient in gradients for extreme in torch.aminmax(gradient)])
        unfit = (extremes.abs() < self.limit).all().logical_not()
        for gradient in gradients:
            gradient.masked_fill_(unfit, 0.0)
        limit = self.limit

        def judge(found: list[Tensor]) -> None:
            if not bool(found[0].isfinite().all()):
                raise NotFiniteError("gradient")
            if not bool((found[0].abs() < limit).all()):
                raise ExponentOverflowError(finite=True)

        work.read([extremes], judge)

    @torch.no_grad()
    def move(self, gradient: Tensor, total: Tensor, weight: int = 1) -> None:
        """Adds a gradient (fp32 [elements], checked) to its total (int64), or takes it away; it is zero afterwards.

        weight: 1 or -1.
        """
        if weight not in (1, -1):
            raise ValueError(f"weight {weight}; allowed: 1, -1")
        on_cpu = gradient.device.type == "cpu"
        size = BLOCK_ELEMENTS * torch.get_num_threads() if on_cpu else _DEVICE_BLOCK_ELEMENTS
        integers = torch.empty_like(total[:size])
        for part, sums in zip(gradient.split(size), total.split(size), strict=True):
            addend = integers[: part.numel()]
            addend.copy_(part.mul_(2.0**self.exponent))  # truncates
            sums.add_(addend, alpha=weight)
            part.zero_()

    def floats(self, total: Blocks) -> Floats:
        """The gradient that a total, int64 [elements], stands for."""
        return Floats(total, self.unit)


@dataclass(frozen=True)
class Floats:
    """A total of integers read as gradients, block by block: rounded to fp32 once, without a second buffer."""

    total: Blocks
    unit: float

    def __getitem__(self, where: slice) -> Tensor:
        """fp32, the elements `where`."""
        return rounded_product(self.total[where], self.unit)
