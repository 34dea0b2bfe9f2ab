"""A stage as its peer sees it, whatever the model is: parameters in flat groups, and how its gradients add up."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from swarmflow.compute.block_recompute import BlockRecompute
from swarmflow.compute.device_work import AtOnce, DeviceWork
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.exact import ExponentOverflowError, FixedPoint
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.grid import Blockwise
from swarmflow.compute.layout_types import StageLayout, TensorSlot


@dataclass(frozen=True)
class GraphInput:
    """What enters a stage of a module with a microbatch.

    boundary: the tensors of the stage before in one, fp32 [1, n]; None on stage 0. batch: the microbatch's own tensors
    that the stage needs, by name.
    """

    boundary: Tensor | None
    batch: Mapping[str, Tensor]


@dataclass(frozen=True)
class PackedInput:
    """What enters a stage of a decoder where rows hold several documents, or not a token at every place.

    x: token ids int [B, T], or an activation [B, T, H]. positions: int64 [B, T], of each token in its document; EMPTY
    where there is none (`swarmflow.targets`). separate: whether documents of a row see nothing of each other.
    """

    x: Tensor
    positions: Tensor
    separate: bool = True


def two_documents(x: Tensor, tokens: int) -> PackedInput:
    """Put two documents into each row of so many tokens: one alone would have no mask that keeps it apart."""
    return PackedInput(x, (torch.arange(tokens) % max(1, -(-tokens // 2))).expand(len(x), tokens))


# What enters a stage: token ids int [B, T] or an activation fp32 [B, T, H] of a decoder, or the input of a module.
StageInput = Tensor | PackedInput | GraphInput


class GroupedStage(ABC):
    """Stage `layout.stage` of `layout.stages`, computed on one device.

    groups: reduction group -> flat buffers. units: full name -> module of every part of this stage that may have
    parameters, under the names of the whole model. order: the names of the units as a microbatch passes them, at least
    one; block_names: of those, without the embedding and the head. block_recompute: of the blocks. rounding: how
    gradients become integers, None where they add up in fp32. in_host_memory: whether the parameters' own values, and
    all that goes with them at a step's edge, are in the memory of the host; a runner then has copies on the device.
    """

    block_recompute: BlockRecompute
    units: dict[str, nn.Module]
    order: list[str]
    block_names: tuple[str, ...]
    autocast = True  # whether passes in bf16 need torch's; else they cast by themselves
    base: Tensor | None = None  # the bytes of the frozen weights beside adapters, uint8 [layout.base_bytes]

    def __init__(
        self,
        layout: StageLayout,
        device: torch.device,
        rounding: FixedPoint | Blockwise | None,
        *,
        in_host_memory: bool = False,
    ) -> None:
        self.layout = layout
        self.device = device
        self.first = layout.stage == 0
        self.last = layout.stage == layout.stages - 1
        self.rounding = rounding
        self.in_host_memory = in_host_memory
        self.groups: dict[str, FlatGroup] = {}
        for name, entries in layout.groups.items():
            stages = len(layout.spread.get(name, (layout.stage,)))
            self.groups[name] = FlatGroup.empty(name, entries, device, rounding, stages, in_host_memory=in_host_memory)

    @property
    def dropout(self) -> bool:
        """Whether training drops anything, and so needs a key to draw from."""
        return False

    @abstractmethod
    def is_bf16_only(self, unit: str, slot: TensorSlot) -> bool:
        """Return whether passes in bf16 need a parameter of this unit in bf16 alone."""

    @abstractmethod
    def enter(self, x: StageInput) -> tuple[Tensor | None, StageInput]:
        """Return the input as autograd leaf, None on stage 0, and what `trunk` takes; both on the device."""

    def rescaled(self, leaf: Tensor, factor: float) -> Tensor:
        """Multiply what the stage before has computed by a factor; what a codec has made zero has no gradient."""
        factors = (leaf != 0) * factor
        factors[..., factors.shape[-1] - self.layout.beside :] = 1.0  # what is beside hidden states is whole
        return leaf * factors

    @abstractmethod
    def trunk(self, x: StageInput, draw: DrawKey | None = None) -> Tensor:
        """Return the output of the stage; on the last one that of which the losses are computed.

        draw: seeds the dropout of this microbatch; without it, or where dropout is off, nothing is dropped.
        """

    @abstractmethod
    def pieces(self, hidden: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the output of the last stage's trunk and the targets in pieces, whose losses add up."""

    @abstractmethod
    def head_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the sum (not mean) of the losses of one piece, a scalar in fp32."""

    def extra_loss(self, hidden: Tensor, targets: Tensor) -> Tensor | None:
        """Return what is added to the losses of the pieces once a microbatch, a scalar in fp32; None: nothing is."""
        return None

    @abstractmethod
    def count(self, targets: Tensor) -> int:
        """Return how many targets, or items, a microbatch has: what its loss counts for."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor, Tensor | None]]:
        """(name in the whole model, values, gradient), views of the flat buffers, in the order of the layout.

        The gradient is None where it is rounded at once.
        """
        for group in self.groups.values():
            for entry in group.entries:
                yield entry.name, group.view(group.params, entry), group.gradient(entry)

    @contextlib.contextmanager
    def gathering(self, weight: int = 1, number: int = 0, work: DeviceWork | None = None) -> Iterator[None]:
        """Add the gradients of the backward passes within to the sums, or take them away (-1): all of one microbatch.

        weight 0: there are no parameters' gradients. In fp32 autograd adds them itself, whatever the weight. number: of
        the microbatch, over all steps; it sets how they are rounded blockwise. Raises ExponentOverflowError when one of
        them does not fit, NotFiniteError when one is no number. After these, or any error within, sums that are rounded
        blockwise are void: they may hold a part of the microbatch. work: reads whether gradients fit; None: at once.
        One that does not read at once raises these errors when it is done.
        """
        work = work or AtOnce(self.device)
        if self.rounding is None or not weight:
            yield
            return
        groups = list(self.groups.values())
        for group in groups:
            group.begin_microbatch(weight, number, work)
        try:
            yield
            if isinstance(self.rounding, FixedPoint):
                self.rounding.check([group.grads for group in groups], work)
            for group in groups:
                group.add_microbatch(weight)
        except ExponentOverflowError as error:
            failure = error if error.finite else NotFiniteError("gradient", self.gradients_broken_in() or "")
            self._abandon_microbatch()
            raise failure from None
        except BaseException:
            self._abandon_microbatch()
            raise

    def gradients_broken_in(self) -> str | None:
        """The unit in which a backward first met a gradient of parameters that is not finite; None: all are finite.

        It is the last one that a microbatch passes; of units that share their weights, the last one here.
        """
        broken = [name for group in self.groups.values() for name in group.not_finite()]
        if not broken:
            return None
        slots = [slot for slots in self.layout.groups.values() for slot in slots if slot.name in broken]
        held = [name for slot in slots for name in slot.holders or (slot.name,)]
        units = [unit for unit in self.order if any(name.startswith(f"{unit}.") for name in held)]
        return units[-1] if units else broken[-1]

    def zero_grads(self) -> None:
        """Sets all gradients to zero."""
        for group in self.groups.values():
            group.zero_grads()

    def _abandon_microbatch(self) -> None:
        for group in self.groups.values():
            group.abandon_microbatch()
