"""The twin of `reduce_codec = "blockwise16"`: the same rounding in a plain loop, written from the rule in the docs.

It uses no code of swarmflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

BLOCK = 256
CYCLE = 65536
FIRST_SPACING = 2.0**-13


def places() -> NDArray[np.int64]:
    """Where each element of a buffer begins in the sequence of multiples of the golden ratio."""
    found = []
    for element in range(CYCLE):
        place = element
        for factor in (40507, 34283, 51819):
            place = place * factor % CYCLE
            place ^= place >> 7
        found.append(place)
    return np.array(found)


class _Buffer:
    """The gradients of a stage, one parameter behind the other, in blocks of 256."""

    def __init__(self, names: Sequence[str], microbatches: int, delay: int) -> None:
        self.names = names
        self.microbatches = microbatches
        self.spacings: list[NDArray[np.float32] | None] = [None] * (1 + delay)  # of this step and those known after it
        self.steps = 0
        self.total: NDArray[np.int64] | None = None
        self.peak: NDArray[np.float32] | None = None

    @property
    def spacing(self) -> NDArray[np.float32] | None:
        """Of each block in this step; None: all are as in the first one."""
        return self.spacings[0]

    def add(self, gradients: Sequence[Tensor], offsets: NDArray[np.float32]) -> None:
        flat = torch.cat([gradient.flatten() for gradient in gradients]).numpy()
        blocks = np.pad(flat, (0, -len(flat) % BLOCK)).reshape(-1, BLOCK)
        peak = np.abs(blocks).max(axis=1)
        self.peak = peak if self.peak is None else np.maximum(self.peak, peak)
        spacing = np.full_like(peak, FIRST_SPACING) if self.spacing is None else self.spacing
        offset = np.resize(offsets, blocks.size).reshape(blocks.shape)
        addend = np.floor(blocks / spacing[:, None] + offset).astype(np.int64)
        self.total = addend if self.total is None else self.total + addend

    def finish(self) -> Tensor:
        """Return the sums, and find the spacing of a later step: the peak is at most a half of what 16 bits take."""
        assert self.total is not None
        assert self.peak is not None
        sums = self.total * (FIRST_SPACING if self.spacing is None else self.spacing.astype(np.float64)[:, None])
        exponent = np.frexp(self.peak)[1] - min(8, 15 - 1 - (self.microbatches - 1).bit_length())
        wanted = np.ldexp(np.float32(1), exponent)
        last = self.spacings[-1]
        if last is None:
            seen = self.peak > 0
            mean = np.ldexp(np.float32(1), exponent[seen].sum() // max(1, seen.sum()))
            found = np.where(seen, wanted, mean)
        else:
            finest = last / (2 if self.steps % 4 == 0 else 1)
            found = np.where(self.peak > 0, np.maximum(wanted, finest), last)
        self.spacings = [*self.spacings[1:], found]
        self.steps += 1
        self.total = self.peak = None
        return torch.from_numpy(sums.astype(np.float32)).flatten()


class Blockwise:
    """Adds the gradients of a step up as a swarm does. stages: the names of each stage's parameters, in order.

    delay: steps from a step's gradients to the grid that follows from them, beside one.
    """

    def __init__(self, stages: Sequence[Sequence[str]], microbatches: int, delay: int = 0) -> None:
        self._buffers = [_Buffer(names, microbatches, delay) for names in stages]
        self._places = places()

    def add(self, model: PreTrainedModel, number: int) -> None:
        offsets = ((self._places + number * 40503) % CYCLE / np.float32(CYCLE)).astype(np.float32)
        own = dict(model.named_parameters())
        for buffer in self._buffers:
            gradients = []
            for name in buffer.names:
                gradient = own[name].grad
                assert gradient is not None
                gradients.append(gradient.clone())
                own[name].grad = None
            buffer.add(gradients, offsets)

    def finish(self, model: PreTrainedModel) -> None:
        own = dict(model.named_parameters())
        for buffer in self._buffers:
            sums, start = buffer.finish(), 0
            for name in buffer.names:
                count = own[name].numel()
                own[name].grad = sums[start : start + count].view_as(own[name]).clone()
                start += count
