"""The grid to which every microbatch's gradient is rounded, so that sums are exact in any order and take 16 bits.

The spacing of the grid is a power of two for each block of 256 elements. It follows from the largest gradients of the
steps before, which all peers of a stage know: it belongs to the stage's state. Rounding is dithered: an element is
rounded up as often as its remainder says, by a sequence that depends on the microbatch and the element alone. So small
gradients are not lost in the sum of many microbatches, and nobody has to agree on random numbers.

In the first step all blocks have one spacing, and sums take 32 bits. Should a gradient not fit, the step starts over
with a larger one, as with exact sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from swarmflow.compute.blocks import grid_blocks
from swarmflow.compute.exact import EXPONENT

DITHER_ELEMENTS: Final = 1 << 16  # after which the elements' places in the sequence repeat
SUM_BITS: Final = 15  # of a sum, beside its sign
FIRST_SUM_BITS: Final = 31  # the same in the first step
FIRST_EXPONENT: Final = 23  # spacings of 1e-4 at first, with which a gradient of 1,000 fits in 256 microbatches
PEAK_BITS: Final = 8  # of the largest gradient of the steps before; what more there are is room for larger ones
HEADROOM_BITS: Final = 1  # at least so many are
FINER_EVERY: Final = 4  # steps: what is rare, like a word, has large gradients now and then
ADDENDS_MAX: Final = 1 << 10  # of a sum: with more of them too few bits are left to each
# Spacings are 2 to a power within these, so that neither they nor their inverses leave fp32's normal numbers.
_EXPONENT_MIN, _EXPONENT_MAX = -120, 120
# Of a rounded gradient that is added in 64 bits: a sum of ADDENDS_MAX of them stays below 2^62.
WIDE_BITS: Final = 52
_GOLDEN = 40503  # 2^16 over the golden ratio: multiples of it fall into the largest gap of those before


@dataclass
class Blockwise:
    """How the gradients of a run are rounded.

    microbatches: of a step. exponent: of the step at hand, in the first one: 2^(FIRST_EXPONENT - exponent) is the
    spacing of all blocks, of which nothing is known yet.
    """

    microbatches: int
    exponent: int = EXPONENT

    @property
    def stages_max(self) -> int:
        """The most stages that may share weights: each adds a gradient for every microbatch."""
        return ADDENDS_MAX // self.microbatches


@dataclass
class Grid:
    """The spacings of a group, fp32 [blocks]; all 0: nothing was learnt yet.

    rounding: of all groups. addends: the largest number of gradients in a sum.
    """

    spacings: Tensor
    rounding: Blockwise
    addends: int
    # Of a device that the host would wait for: the number of changes of the spacings, and what `known` was then.
    _read: tuple[int, bool] = field(init=False, default=(-1, False), repr=False, compare=False)

    @classmethod
    def empty(cls, elements: int, rounding: Blockwise, addends: int, device: torch.device) -> Grid:
        """Return the grid of a group that has not learnt anything."""
        return cls(torch.zeros(grid_blocks(elements), device=device), rounding, addends)

    @property
    def known(self) -> bool:
        """Whether there was a step, from which the spacings follow."""
        if self.spacings.device.type == "cpu":  # where they may change without a trace, through a memoryview
            return bool((self.spacings[:1] > 0).all())
        changes = self.spacings._version
        if self._read[0] != changes:
            self._read = changes, bool((self.spacings[:1] > 0).all())
        return self._read[1]

    def present(self) -> Tensor:
        """Return the spacings of the step at hand, fp32 [blocks]."""
        if self.known:
            return self.spacings.clone()  # a commit changes those of the grid
        return torch.full_like(self.spacings, 2.0 ** (FIRST_EXPONENT - self.rounding.exponent))

    @property
    def limit(self) -> int:
        """A block whose rounded gradients are at most this large is summed in 16 bits, whatever is added to it.

        In the first step, in 32 bits.
        """
        return (1 << (SUM_BITS if self.known else FIRST_SUM_BITS)) // self.addends - 1

    def follow(self, peaks: Tensor, step: int) -> None:
        """Set the spacings for the step after this one.

        peaks: the largest gradient of a block in one microbatch, fp32 [blocks], on any device. A block's grid becomes
        finer in every fourth step only, and by a factor of two, and stays as it is where the block had no gradient. One
        that had none in the first step begins with the geometric mean of the others' spacings.
        """
        peaks = peaks.to(self.spacings.device)
        bits = SUM_BITS - (self.addends - 1).bit_length()
        bits = min(bits - HEADROOM_BITS, PEAK_BITS)
        seen, wanted = peaks > 0, torch.frexp(peaks)[1].long() - bits  # a peak is below 2 to this exponent
        if self.known:
            wanted = torch.maximum(wanted, torch.frexp(self.spacings)[1] - (2 if step % FINER_EVERY == 0 else 1))
            self.spacings.copy_(torch.where(seen, _power_of_two(wanted), self.spacings))
        else:
            mean = wanted.mul(seen).sum() // seen.sum().clamp(min=1)
            self.spacings.copy_(_power_of_two(torch.where(seen, wanted, mean)))
        self._read = self.spacings._version, True


def dither(number: int, device: torch.device) -> Tensor:
    """Return what is added to the elements of a microbatch before they are rounded down: fp32 [DITHER_ELEMENTS].

    number: of the microbatch, counted over all steps. Every element goes through multiples of the golden ratio, modulo
    1, each from a place of its own: over any number of microbatches these are spread evenly (the additive recurrence,
    or Weyl sequence), and the sum of equal gradients is right to about one spacing.
    """
    # Multiples of 2^-16 below 2, of which fp32 is exact.
    return (_places(device) + number * _GOLDEN % DITHER_ELEMENTS / DITHER_ELEMENTS).frac_()


@lru_cache(maxsize=8)
def _places(device: torch.device) -> Tensor:
    """Return where each element begins in the sequence, fp32 in [0, 1): a fixed permutation without visible order."""
    place = torch.arange(DITHER_ELEMENTS, dtype=torch.int64, device=device)
    for factor in (0x9E3B, 0x85EB, 0xCA6B):  # odd: each step maps the places one to one
        place = place * factor % DITHER_ELEMENTS
        place ^= place >> 7
    return place.float().div_(DITHER_ELEMENTS)


def _power_of_two(exponents: Tensor) -> Tensor:
    clamped = exponents.clamp(_EXPONENT_MIN, _EXPONENT_MAX)
    return torch.ldexp(torch.ones_like(clamped, dtype=torch.float32), clamped)
