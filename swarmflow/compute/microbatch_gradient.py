"""The gradient of one microbatch on its path from autograd into sums on a grid.

A large parameter's gradient is rounded as soon as autograd has it, while it is in the cache, and is freed. So the
gradient of a whole microbatch never exists. Only what comes in several parts is kept until the backward pass is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from swarmflow.compute.blocks import BLOCK_ELEMENTS, grid_blocks
from swarmflow.compute.blockwise_sums import BlockwiseSums
from swarmflow.compute.device_work import AtOnce, DeviceWork
from swarmflow.compute.exact import ExponentOverflowError
from swarmflow.compute.layout import TensorSlot

AT_ONCE_BLOCKS_MIN: Final = 64  # for fewer the calls take longer than the passes over memory that they save


@dataclass(frozen=True)
class KeptBlocks:
    """Neighbouring blocks whose gradients are kept until the end: their first one in the group and in the buffer."""

    first: int
    count: int
    position: int


def blocks_at_once(slot: TensorSlot) -> range:
    """Return the blocks of a group that are rounded with one parameter: those that hold no other; empty if few."""
    whole = range(grid_blocks(slot.offset), slot.stop // BLOCK_ELEMENTS)
    single = slot.single_gradient and len(whole) >= AT_ONCE_BLOCKS_MIN
    return whole if single else whole[:0]


def kept_blocks(entries: Sequence[TensorSlot]) -> tuple[KeptBlocks, ...]:
    """Return the other blocks of a group: of parameters whose gradients come in parts, or are small, and the edges."""
    kept, begin, position = [], 0, 0
    ends = [whole for whole in map(blocks_at_once, entries) if whole]
    blocks = grid_blocks(entries[-1].stop if entries else 0)
    for whole in [*ends, range(blocks, blocks)]:
        if whole.start > begin:
            kept.append(KeptBlocks(begin, whole.start - begin, position))
            position += whole.start - begin
        begin = whole.stop
    return tuple(kept)


class MicrobatchGradient:
    """Rounds the gradients of a group, one microbatch at a time, and adds them to its sums.

    kept: fp32 [blocks * 256], the gradients of the `kept_blocks`; zero between microbatches.
    """

    def __init__(self, sums: BlockwiseSums, entries: Sequence[TensorSlot], device: torch.device) -> None:
        self._sums = sums
        self._blocks = kept_blocks(entries)
        self.kept = torch.zeros(sum(blocks.count for blocks in self._blocks) * BLOCK_ELEMENTS, device=device)
        self._weight = self._number = 0
        self._work: DeviceWork = AtOnce(device)
        self._failure: ExponentOverflowError | None = None
        self.not_finite: str | None = None  # the parameter in whose gradient the backward pass met such a value first

    def begin(self, weight: int, number: int, work: DeviceWork | None = None) -> None:
        """Begin a microbatch whose gradients are added (weight 1) or taken away (-1). number: over all steps.

        work: reads whether they fit; None: at once.
        """
        self._weight, self._number = weight, number
        self._work = self._sums.queued.reader(work or AtOnce(self.kept.device))

    def kept_gradient(self, slot: TensorSlot) -> Tensor | None:
        """Return the part of `kept` into which a parameter's gradient is accumulated; None: it is rounded at once."""
        if blocks_at_once(slot):
            return None
        return self._kept(slot.offset, slot.stop).view(slot.shape)

    def hook(self, slot: TensorSlot) -> Callable[[nn.Parameter], None]:
        """Return a hook to be called when the gradient of the parameter is complete; it frees the gradient."""

        def accumulated(parameter: nn.Parameter) -> None:
            assert parameter.grad is not None
            self.round_at_once(slot, parameter.grad)
            parameter.grad = None

        return accumulated

    def round_at_once(self, slot: TensorSlot, gradient: Tensor) -> None:
        """Add the gradient of a parameter to the sums, and what it has of blocks that it shares to the kept ones.

        gradient: fp32, of the parameter's shape. After one that does not fit, the rest of the microbatch is ignored.
        """
        if self._failure is not None:
            return
        flat, whole = gradient.view(-1), blocks_at_once(slot)
        start, stop = whole.start * BLOCK_ELEMENTS, whole.stop * BLOCK_ELEMENTS
        try:
            part = flat[start - slot.offset : stop - slot.offset]
            self._sums.add(part, self._weight, self._number, whole.start, self._work)
        except ExponentOverflowError as error:
            self._failure = error
            self.not_finite = None if error.finite else slot.name
        for low, high in ((slot.offset, start), (stop, slot.stop)):
            if low < high:
                self._kept(low, high).add_(flat[low - slot.offset : high - slot.offset])

    def finish(self) -> None:
        """Add what was kept. Raises ExponentOverflowError where a gradient of the microbatch did not fit.

        Then the sums hold a part of it: they are void, as is the step.
        """
        if self._failure is not None:
            raise self._failure
        for blocks in self._blocks:
            rows = self.kept[blocks.position * BLOCK_ELEMENTS :][: blocks.count * BLOCK_ELEMENTS]
            self._sums.add(rows, self._weight, self._number, blocks.first, self._work)
        self._sums.queued.judge(self._work)
        self.kept.zero_()

    def abandon(self) -> None:
        """Drop what is left of a microbatch whose gradients cannot be used, and mark the sums as void."""
        self._failure = self.not_finite = None
        self.kept.zero_()
        self._sums.spoil()

    def _kept(self, start: int, stop: int) -> Tensor:
        """Return the kept gradients of the elements start to stop of the group, which lie in kept blocks."""
        for blocks in self._blocks:
            first = blocks.first * BLOCK_ELEMENTS
            if first <= start and stop <= first + blocks.count * BLOCK_ELEMENTS:
                offset = blocks.position * BLOCK_ELEMENTS - first
                return self.kept[start + offset : stop + offset]
        raise AssertionError(f"the elements {start} to {stop} are not kept")
