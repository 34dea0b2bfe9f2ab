"""Flat fp32 buffers: parameters, gradients and optimizer state of a reduction group, each in one piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from swarmflow.compute.blockwise_sums import BlockwiseSums, StoredSums
from swarmflow.compute.device_work import DeviceWork
from swarmflow.compute.exact import FixedPoint
from swarmflow.compute.finite import finite
from swarmflow.compute.grid import Blockwise, Grid
from swarmflow.compute.host_memory import host_zeros
from swarmflow.compute.layout import TensorSlot
from swarmflow.compute.microbatch_gradient import MicrobatchGradient
from swarmflow.compute.state_root import GRID, item_bytes, tensor_elements
from swarmflow.compute.sums import Sums, TensorSums


def rounding_of(accumulate: str, reduce_codec: str, microbatches: int) -> FixedPoint | Blockwise | None:
    """Return how the gradients of a run's microbatches are rounded before they add up, by its [train]."""
    if accumulate == "exact":
        return FixedPoint(microbatches)
    return Blockwise(microbatches) if reduce_codec == "blockwise16" else None


@dataclass
class FlatGroup:
    """Parameters that are reduced and stored together; `entries` say where each lies.

    params and grads are fp32, of shape [elements], and so is every tensor of `state` but 8-bit moments (`moments.py`):
    all-reduce and transfer of state work on slices of them, and adam takes exactly 16 bytes a parameter,
    with 8-bit moments 10 and two scales a block. All are on one device, or what is the state at a step's edge is in the
    memory of the host (`in_host_memory`): then the device has the gradients and their sums, and copies of the
    parameters (`working_weights.py`). Where gradients are rounded (`rounding`),
    `grads` has those of one microbatch, and `sums` the sums over all: exact ones take 8 bytes more. Rounded blockwise,
    only a few gradients are kept in `grads` (`microbatch`), and the sums take 2 bytes a parameter instead of its 4.
    """

    name: str
    entries: tuple[TensorSlot, ...]
    params: Tensor
    grads: Tensor
    sums: Sums
    state: dict[str, Tensor] = field(default_factory=dict)
    rounding: FixedPoint | Blockwise | None = None
    microbatch: MicrobatchGradient | None = None
    in_host_memory: bool = False

    @classmethod
    def empty(
        cls,
        name: str,
        entries: tuple[TensorSlot, ...],
        device: torch.device,
        rounding: FixedPoint | Blockwise | None = None,
        stages: int = 1,
        *,
        in_host_memory: bool = False,
    ) -> FlatGroup:
        """Return a group whose tensors are zeros. stages: that have it, each of which adds to its gradient.

        device: of the gradients, and of all else that is not in the memory of the host.
        """
        elements = entries[-1].stop if entries else 0
        params = host_zeros(elements, device) if in_host_memory else torch.zeros(elements, device=device)
        if isinstance(rounding, Blockwise):
            grid = Grid.empty(elements, rounding, rounding.microbatches * stages, params.device)
            blockwise = BlockwiseSums(grid, elements, device)
            microbatch = MicrobatchGradient(blockwise, entries, device)
            parts: tuple[Tensor, Sums] = microbatch.kept, blockwise
            return cls(name, entries, params, *parts, {}, rounding, microbatch, in_host_memory)
        grads = torch.zeros(elements, device=device)
        sums = TensorSums(grads, home=params.device)
        if rounding is not None:
            sums = TensorSums(torch.zeros(elements, dtype=torch.int64, device=device), rounding, params.device)
        return cls(name, entries, params, grads, sums, {}, rounding, None, in_host_memory)

    def parameter(self, entry: TensorSlot) -> nn.Parameter:
        """Return a trainable view of one parameter; one in the memory of the host awaits its copy on the device."""
        parameter = nn.Parameter(self.view(self.params, entry))
        if not self.in_host_memory:
            self.take_gradients(parameter, entry)
        return parameter

    def take_gradients(self, parameter: nn.Parameter, entry: TensorSlot) -> None:
        """Have the gradients of a parameter added up here. parameter: fp32, on the device of the gradients.

        Autograd accumulates into its `.grad`, a view, or hands over each gradient as soon as it is complete.
        """
        parameter.grad = self.gradient(entry)
        if parameter.grad is None:
            assert self.microbatch is not None, "others have a view"
            parameter.register_post_accumulate_grad_hook(self.microbatch.hook(entry))

    def gradient(self, entry: TensorSlot) -> Tensor | None:
        """Return the part of `grads` that belongs to one parameter, in its shape; None: it is rounded at once."""
        if self.microbatch is not None:
            return self.microbatch.kept_gradient(entry)
        return self.view(self.grads, entry)

    def accumulate(self, entry: TensorSlot, gradient: Tensor) -> None:
        """Add the gradient of one parameter in one backward pass, of any dtype, as autograd adds those that it has."""
        total = self.gradient(entry)
        if total is not None:
            total.add_(gradient)
        else:
            assert self.microbatch is not None, "others have a view"
            self.microbatch.round_at_once(entry, gradient.float())

    def view(self, flat: Tensor, entry: TensorSlot) -> Tensor:
        """Return the part of a flat tensor of this group that belongs to one parameter, in the parameter's shape."""
        return flat[entry.offset : entry.stop].view(entry.shape)

    def begin_microbatch(self, weight: int, number: int, work: DeviceWork | None = None) -> None:
        """Begin the backward passes of one microbatch, whose gradients are rounded. See `Stage.gathering`."""
        if self.microbatch is not None:
            self.microbatch.begin(weight, number, work)

    def add_microbatch(self, weight: int) -> None:
        """Add to the sums what the backward passes have left. Raises ExponentOverflowError for what does not fit."""
        if self.microbatch is not None:
            self.microbatch.finish()
        elif isinstance(self.rounding, FixedPoint):
            self.rounding.move(self.grads, self.summed, weight)

    def abandon_microbatch(self) -> None:
        """Drop what is left of a microbatch that failed. Blockwise sums are void: they may hold a part of it."""
        if self.microbatch is not None:
            self.microbatch.abandon()
        elif isinstance(self.rounding, FixedPoint):
            self.grads.zero_()

    def not_finite(self) -> list[str]:
        """Return the parameters with gradients in `grads` that are not finite, and one of those rounded at once."""
        rounded = self.microbatch.not_finite if self.microbatch is not None else None
        found = [rounded] if rounded is not None else []
        if not finite(self.grads):
            kept = ((entry.name, self.gradient(entry)) for entry in self.entries)
            found += [name for name, gradient in kept if gradient is not None and not finite(gradient)]
        return found

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
    def nbytes(self) -> int:
        """The memory of the group, in bytes."""
        sums = self.sums.nbytes if self.rounding is not None else 0
        return self.grads.nbytes + sums + sum(tensor.nbytes for tensor in self.tensors().values())

    def learnt(self, sums: Sums, step: int) -> None:
        """Record what the next step has to know of the sums with which the parameters were updated in this one."""
        if isinstance(self.sums, BlockwiseSums):
            assert isinstance(sums, BlockwiseSums | StoredSums), "of the same group"
            self.sums.queued.reads_at_once = False
            self.sums.grid.follow(sums.peaks, step)

    def allocate(self, names: Iterable[str]) -> None:
        """Add a state tensor of zeros for each name that has none."""
        for name in names:
            if name not in self.state:
                dtype = torch.float32 if item_bytes(name) == 4 else torch.uint8
                self.state[name] = self.params.new_zeros(tensor_elements(name, self.params.numel()), dtype=dtype)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that is the group's state at a step's edge: `params`, the optimizer's tensors, and a grid."""
        tensors = {"params": self.params, **self.state}
        return tensors | {GRID: self.sums.grid.spacings} if isinstance(self.sums, BlockwiseSums) else tensors
