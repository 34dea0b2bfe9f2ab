"""Flat fp32 buffers: parameters, gradients and optimizer state of a reduction group, each in one piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from swarmflow.compute.blockwise_sums import BlockwiseSums, StoredSums
from swarmflow.compute.exact import FixedPoint
from swarmflow.compute.grid import BLOCK_ELEMENTS, Blockwise, Grid, grid_blocks
from swarmflow.compute.layout import TIED, TensorSlot
from swarmflow.compute.sums import Sums, TensorSums

GRID = "grid"  # among the tensors of a group's state


def rounding_of(accumulate: str, reduce_codec: str, microbatches: int) -> FixedPoint | Blockwise | None:
    """Return how the gradients of a run's microbatches are rounded before they add up, by its [train]."""
    if accumulate == "exact":
        return FixedPoint(microbatches)
    return Blockwise(microbatches) if reduce_codec == "blockwise16" else None


@dataclass
class FlatGroup:
    """Parameters that are reduced and stored together; `entries` say where each lies.

    params, grads and every tensor of `state` are fp32, of shape [elements], on one device: all-reduce and transfer of
    state work on slices of them, and adam takes exactly 16 bytes a parameter. Where gradients are rounded (`rounding`),
    `grads` has those of one microbatch, and `sums` the sums over all: 8 bytes more if exact, 2 if blockwise.
    """

    name: str
    entries: tuple[TensorSlot, ...]
    params: Tensor
    grads: Tensor
    sums: Sums
    state: dict[str, Tensor] = field(default_factory=dict)
    rounding: FixedPoint | Blockwise | None = None

    @classmethod
    def empty(
        cls,
        name: str,
        entries: tuple[TensorSlot, ...],
        device: torch.device,
        rounding: FixedPoint | Blockwise | None = None,
    ) -> FlatGroup:
        """Return a group whose tensors are zeros."""
        elements = entries[-1].stop if entries else 0
        params = torch.zeros(elements, dtype=torch.float32, device=device)
        grads = torch.zeros_like(params)
        sums: Sums = TensorSums(grads)
        match rounding:
            case FixedPoint():
                sums = TensorSums(torch.zeros_like(params, dtype=torch.int64), rounding)
            case Blockwise():
                grads = torch.zeros(grid_blocks(elements) * BLOCK_ELEMENTS, device=device)[:elements]
                addends = rounding.microbatches * (2 if name == TIED else 1)  # both ends of the model add to it
                sums = BlockwiseSums(Grid.empty(elements, rounding, addends, device), elements)
        return cls(name, entries, params, grads, sums, rounding=rounding)

    def parameter(self, entry: TensorSlot) -> nn.Parameter:
        """Return a trainable view of one parameter; its `.grad` is a view too, into which autograd accumulates."""
        parameter = nn.Parameter(self.view(self.params, entry))
        parameter.grad = self.view(self.grads, entry)
        return parameter

    def view(self, flat: Tensor, entry: TensorSlot) -> Tensor:
        """Return the part of a flat tensor of this group that belongs to one parameter, in the parameter's shape."""
        return flat[entry.offset : entry.stop].view(entry.shape)

    def zero_grads(self) -> None:
        """Set the gradients and their sums to zero in place."""
        self.grads.zero_()
        self.sums.zero()

    @property
    def summed(self) -> Tensor:
        """The tensor of the sums, where they are one tensor."""
        assert isinstance(self.sums, TensorSums), "blockwise sums are not one tensor"
        return self.sums.flat

    @property
    def padded_grads(self) -> Tensor:
        """The gradients with the zeros behind them, up to a whole number of blocks."""
        return self.grads.as_strided((grid_blocks(self.grads.numel()) * BLOCK_ELEMENTS,), (1,))

    @property
    def nbytes(self) -> int:
        """The memory of the group, in bytes."""
        sums = self.sums.nbytes if self.rounding is not None else 0
        return self.grads.nbytes + sums + sum(tensor.nbytes for tensor in self.tensors().values())

    def learnt(self, sums: Sums, step: int) -> None:
        """Record what the next step has to know of the sums with which the parameters were updated in this one."""
        if isinstance(self.sums, BlockwiseSums):
            assert isinstance(sums, BlockwiseSums | StoredSums), "of the same group"
            self.sums.grid.follow(sums.peaks, step)

    def allocate(self, names: Iterable[str]) -> None:
        """Add a state tensor of zeros for each name that has none."""
        for name in names:
            if name not in self.state:
                self.state[name] = torch.zeros_like(self.params)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is the group's state at a step's edge: `params`, the optimizer's tensors, and a grid."""
        tensors = {"params": self.params, **self.state}
        return tensors | {GRID: self.sums.grid.spacings} if isinstance(self.sums, BlockwiseSums) else tensors
