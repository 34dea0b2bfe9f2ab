"""Copies of a stage's weights on its device, where the weights themselves are in the memory of the host.

In fp32 they are a copy of each flat buffer. In bf16 a matrix by which something is multiplied has a bf16 copy, as
autocast would make it; norms and biases, which autocast leaves in fp32, have fp32 ones. An embedding has none: it is
used in fp32, and the rows of a microbatch's tokens are read from the host. Of a module, what its graph uses in bf16
alone has bf16 copies, and all else fp32 ones. So every result has the bits that it has where the weights are on the
device, and a parameter takes 2 bytes there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from swarmflow.compute.boundary_layers import CompressingHalf, ExpandingHalf
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.grouped_stage import GroupedStage
from swarmflow.compute.layout_types import FROZEN, TensorSlot
from swarmflow.compute.precision import handing_over

_MULTIPLIES = (nn.Linear, Conv1D, CompressingHalf, ExpandingHalf)


class WorkingWeights:
    """Puts the copies into the modules of a stage, and copies again what has changed."""

    def __init__(self, stage: GroupedStage, precision: str) -> None:
        self._stage = stage
        self._pairs: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}  # (copy, the values)
        self._flat: dict[str, Tensor] = {}
        if precision == "fp32":
            self._flat = {name: self._copy_of(group.params, torch.float32) for name, group in stage.groups.items()}
        masters = {
            group.view(group.params, entry).data_ptr(): (group, entry)
            for group in stage.groups.values()
            for entry in group.entries
        }
        placed: list[tuple[nn.Module, str, FlatGroup, TensorSlot, bool]] = []
        for name, unit in stage.units.items():
            for module in unit.modules():
                held = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
                found = [(leaf, *masters[own.data_ptr()]) for leaf, own in held if own.data_ptr() in masters]
                placed += [
                    (module, leaf, group, entry, stage.is_bf16_only(name, entry)) for leaf, group, entry in found
                ]
        assert {entry.name for *_, entry, _ in placed} == {entry.name for _, entry in masters.values()}, "all of them"
        for module, leaf, group, entry, halves in placed:
            if group.name == FROZEN:
                module._buffers[leaf] = self._fp32(group, entry)
                continue
            if precision == "fp32":
                copy = nn.Parameter(self._fp32(group, entry))
                group.take_gradients(copy, entry)
            else:
                copy = self._half_or_full(module, group, entry, halves=halves)
            setattr(module, leaf, copy)
        self._seen = -1
        self.refresh()

    @property
    def storages(self) -> set[int]:
        """Addresses of the copies' memory."""
        return {copy.untyped_storage().data_ptr() for copy in self.tensors}

    @property
    def tensors(self) -> list[Tensor]:
        """The copies."""
        return [copy for copy, _ in self._pairs.values()]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights again if a torch operation has changed them since."""
        changes = sum(group.params._version for group in self._stage.groups.values())
        if changes != self._seen:
            for copy, values in self._pairs.values():
                copy.copy_(values)
            self._seen = changes

    def forget(self) -> None:
        """Make the next `refresh` copy, for weights that were written past torch."""
        self._seen = -1

    def _half_or_full(self, module: nn.Module, group: FlatGroup, entry: TensorSlot, *, halves: bool) -> nn.Parameter:
        """Return what a module computes with in bf16 instead of one of its parameters.

        halves: whether it has a bf16 copy where the weights are on the device (`HalfWeights`).
        """
        values, add = group.view(group.params, entry), partial(group.accumulate, entry)
        if isinstance(module, nn.Embedding) and not halves:
            rows: nn.Parameter = HostRows.of(values, self._stage.device)
            rows.register_post_accumulate_grad_hook(handing_over(add))
            return rows
        if halves or (len(entry.shape) >= 2 and isinstance(module, _MULTIPLIES)):
            copy = nn.Parameter(self._copy_of(values, torch.bfloat16))
            copy.register_post_accumulate_grad_hook(handing_over(add))
            return copy
        copy = nn.Parameter(self._fp32(group, entry))
        group.take_gradients(copy, entry)
        return copy

    def _fp32(self, group: FlatGroup, entry: TensorSlot) -> Tensor:
        """Return the fp32 copy of a parameter.

        In a copy of the whole buffer it lies as it does in the buffer, so that the same kernels are used.
        """
        if group.name in self._flat:
            return group.view(self._flat[group.name], entry)
        return self._copy_of(group.view(group.params, entry), torch.float32)

    def _copy_of(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the copy of these values, one for all modules that share them."""
        key = values.data_ptr(), dtype
        if key not in self._pairs:
            self._pairs[key] = torch.empty_like(values, dtype=dtype, device=self._stage.device), values
        return self._pairs[key][0]


class HostRows(nn.Parameter):
    """Stands on the device for an embedding in the memory of the host: it has its shape, and takes 4 bytes in all.

    It may only be looked up: for anything else its values are no numbers, which a pass reports. Its gradient is that of
    the embedding, on the device.
    """

    on_host: Tensor

    @classmethod
    def of(cls, values: Tensor, device: torch.device) -> HostRows:
        """Stand for these values, fp32 [rows, H]."""
        made: HostRows = cls(torch.full((1,), math.nan, device=device).expand(values.shape))
        made.on_host = values
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func is nn.functional.embedding:
            return _looked_up(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _looked_up(
    ids: Tensor,
    weight: HostRows,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Return what `torch.nn.functional.embedding` does."""
    assert (max_norm, scale_grad_by_freq, sparse) == (None, False, False), "no family of transformers has these"
    padding = -1 if padding_idx is None else padding_idx % len(weight.on_host)
    found: Tensor = _Lookup.apply(weight, ids, weight.on_host, padding)  # type: ignore[no-untyped-call]
    return found


class _Lookup(torch.autograd.Function):
    """Rows of an embedding on the host, brought to the device; the gradient as torch computes it, on the device."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, values: Tensor, padding: int) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(ids)
        ctx.rows, ctx.padding = len(values), padding
        return nn.functional.embedding(ids.to(values.device), values).to(ids.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        [gradient], [ids] = gradients, ctx.saved_tensors
        rows: Tensor = torch.ops.aten.embedding_dense_backward(gradient, ids, ctx.rows, ctx.padding, False)
        return rows, None, None, None
