"""Flat fp32 buffers: parameters, gradients and optimizer state of a reduction group, each in one piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from blake3 import blake3
from torch import Tensor, nn

from swarmflow.compute.exact import FixedPoint
from swarmflow.compute.layout import TensorSlot

SUM_BLOCK_ELEMENTS = 1 << 16
_SUM_ROWS = SUM_BLOCK_ELEMENTS >> 8
_DIGEST_CHUNK_ELEMENTS = 1 << 24


class Blocks(Protocol):
    """A flat fp32 tensor, or a stand-in that computes each requested range (`exact.Floats`)."""

    def __getitem__(self, where: slice, /) -> Tensor:
        """Return the elements of the range `where`, in fp32."""
        ...


@dataclass
class FlatGroup:
    """Parameters that are reduced and stored together; `entries` say where each lies.

    params, grads and every tensor of `state` are fp32, of shape [elements], on one device: all-reduce and transfer of
    state work on slices of them, and adam takes exactly 16 bytes a parameter. Exact accumulation takes 8 more: then
    `grads` has the gradients of one microbatch, and `totals` (int64) their sums over all, in units of `fixed.unit`.
    """

    name: str
    entries: tuple[TensorSlot, ...]
    params: Tensor
    grads: Tensor
    state: dict[str, Tensor] = field(default_factory=dict)
    totals: Tensor | None = None
    fixed: FixedPoint | None = None

    @classmethod
    def empty(
        cls, name: str, entries: tuple[TensorSlot, ...], device: torch.device, fixed: FixedPoint | None = None
    ) -> FlatGroup:
        """Return a group whose tensors are zeros."""
        elements = entries[-1].stop if entries else 0
        params = torch.zeros(elements, dtype=torch.float32, device=device)
        totals = None if fixed is None else torch.zeros_like(params, dtype=torch.int64)
        return cls(name, entries, params, torch.zeros_like(params), totals=totals, fixed=fixed)

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
        if self.totals is not None:
            self.totals.zero_()

    @property
    def summed(self) -> Tensor:
        """The sums over the microbatches of a step, which peers all-reduce: `totals`, or `grads` without totals."""
        return self.grads if self.totals is None else self.totals

    @property
    def nbytes(self) -> int:
        """The memory of the group, in bytes."""
        totals = 0 if self.totals is None else self.totals.nbytes
        return self.grads.nbytes + totals + sum(tensor.nbytes for tensor in self.tensors().values())

    def gradient(self, summed: Tensor) -> Blocks:
        """Return the fp32 gradient that a tensor in the form of `summed` encodes."""
        return summed if self.fixed is None else self.fixed.floats(summed)

    def sum_of_squares(self, summed: Tensor) -> float:
        """Return the sum of squares of the gradient that a tensor in the form of `summed` encodes."""
        return sum_of_squares(summed, 1.0 if self.fixed is None else self.fixed.unit)

    def allocate(self, names: Iterable[str]) -> None:
        """Add a state tensor of zeros for each name that has none."""
        for name in names:
            if name not in self.state:
                self.state[name] = torch.zeros_like(self.params)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is the group's state at a step's edge: `params` and the optimizer's tensors."""
        return {"params": self.params, **self.state}


def digest(tensors: Tensor | Sequence[Tensor]) -> str:
    """blake3 hex digest over the bytes of contiguous tensors, one after another; no copy on a CPU."""
    hasher = blake3()
    for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
        flat = tensor.detach().view(-1)
        for start in range(0, flat.numel(), _DIGEST_CHUNK_ELEMENTS):
            hasher.update(memory_of(flat[start : start + _DIGEST_CHUNK_ELEMENTS].cpu()))
    return hasher.hexdigest()


def digest_of_pieces(flat: Tensor, elements: int) -> tuple[str, tuple[str, ...]]:
    """blake3 hex digests of a flat tensor's pieces of so many elements, and the one over these digests, first."""
    pieces = tuple(digest(piece) for piece in flat.split(elements))
    return blake3("".join(pieces).encode()).hexdigest(), pieces


def memory_of(flat: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    return flat.detach().view(torch.uint8).numpy().data


def sum_of_squares(flat: Tensor, unit: float = 1.0) -> float:
    """Sum of squares of a tensor [elements] (fp32; int64 in units of `unit`), in float64.

    It is the same whatever the number of threads. Blocks of SUM_BLOCK_ELEMENTS from the start of the tensor are added
    in order; whoever owns a range that starts at a block's edge gets the very sums that the whole tensor would give.
    """
    total = 0.0
    for start in range(0, flat.numel(), SUM_BLOCK_ELEMENTS):
        block = flat[start : start + SUM_BLOCK_ELEMENTS].double()
        if unit != 1.0:
            block.mul_(unit)
        if block.numel() < SUM_BLOCK_ELEMENTS:
            block = nn.functional.pad(block, (0, SUM_BLOCK_ELEMENTS - block.numel()))
        # Torch splits one long sum among threads, but never one row: rows first, then a column too short to split.
        total += float(block.view(_SUM_ROWS, -1).square_().sum(dim=1).sum())
    return total
