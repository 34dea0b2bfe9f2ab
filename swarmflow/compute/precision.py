"""bf16 copies of the weights of matrix products, one for all microbatches instead of one for each.

Autocast alone would cast every weight anew in every forward, and each kept graph would hold a copy of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from swarmflow.compute.grouped_stage import GroupedStage


class HalfWeights:
    """Puts bf16 copies of what is needed in bf16 alone into the modules of a stage; costs 2 bytes a parameter.

    The fp32 master weights stay in the flat buffers. A copy's gradient is added to the master's, in fp32, as soon as
    autograd has it, and is freed.
    """

    def __init__(self, stage: GroupedStage) -> None:
        self._stage = stage
        self._pairs: list[tuple[Tensor, Tensor]] = []
        halves: dict[int, Tensor] = {}  # blocks that share a weight share its copy, but each hands over its gradient
        masters = {
            group.view(group.params, entry).data_ptr(): (group, entry)
            for group in stage.groups.values()
            for entry in group.entries
        }
        for name, unit in stage.units.items():
            for module in unit.modules():
                for leaf, parameter in list(module.named_parameters(recurse=False)):
                    if not parameter.requires_grad or parameter.data_ptr() not in masters:
                        continue
                    group, entry = masters[parameter.data_ptr()]
                    if not stage.is_bf16_only(name, entry):
                        continue
                    values = group.view(group.params, entry)
                    if parameter.data_ptr() not in halves:
                        halves[parameter.data_ptr()] = torch.empty_like(values, dtype=torch.bfloat16)
                        self._pairs.append((halves[parameter.data_ptr()], values))
                    copy = nn.Parameter(halves[parameter.data_ptr()])
                    copy.register_post_accumulate_grad_hook(handing_over(partial(group.accumulate, entry)))
                    setattr(module, leaf, copy)
        self._seen = -1
        self.refresh()

    @property
    def storages(self) -> set[int]:
        """Addresses of the copies' memory."""
        return {copy.untyped_storage().data_ptr() for copy, _ in self._pairs}

    @property
    def tensors(self) -> list[Tensor]:
        """The copies."""
        return [copy for copy, _ in self._pairs]

    @property
    def nbytes(self) -> int:
        """Memory that the copies take, in bytes."""
        return sum(copy.nbytes for copy, _ in self._pairs)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copies the master weights again if a torch operation has changed them since."""
        changes = sum(group.params._version for group in self._stage.groups.values())
        if changes != self._seen:
            for copy, values in self._pairs:
                copy.copy_(values)
            self._seen = changes

    def forget(self) -> None:
        """Makes the next `refresh` copy, for weights that were written past torch."""
        self._seen = -1


def handing_over(add: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    """Return a hook of a copy that adds its gradient to that of the parameter itself, and frees it."""

    def accumulated(copy: Tensor) -> None:
        assert copy.grad is not None
        add(copy.grad)
        copy.grad = None

    return accumulated
