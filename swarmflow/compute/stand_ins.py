"""What stands in a stage for parts of the whole model that other stages have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import ModelOutput


class Nothing(nn.Module):
    """Stands for an embedding (of positions) that another stage has added already."""

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        # On the device of the positions: from the CPU it would be copied in every pass, and the host would wait.
        device = next((each.device for each in args if isinstance(each, Tensor)), None)
        return torch.zeros((), device=device)


class Same(nn.Module):
    """Stands for a norm, projection or dropout that another stage applies."""

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        return x


class PassThrough(nn.Module):
    """Stands for the base model where transformers' causal model is to apply its head alone."""

    def __init__(self) -> None:
        super().__init__()
        # The head's forward reads the fields of its own family's output; the trunk's first output shows which it is.
        self.output_type: type[ModelOutput] = BaseModelOutputWithPast

    def forward(self, *args: object, inputs_embeds: Tensor, **kwargs: object) -> ModelOutput:
        return self.output_type(last_hidden_state=inputs_embeds)


class Edges:
    """Leads what crosses a boundary past all that the base model does before its first block and after its last one.

    Some families scale the embedding there, or add positions: that is done once, on the first and on the last stage.
    """

    def __init__(self, blocks: nn.ModuleList, *, first: bool, last: bool) -> None:
        self._entering: Tensor | None = None
        self._left: list[Tensor] = []
        if not first:
            blocks[0].register_forward_pre_hook(self._enter, with_kwargs=True)
        if not last:
            blocks[-1].register_forward_hook(self._leave)

    @contextlib.contextmanager
    def between(self, entering: Tensor | None) -> Iterator[list[Tensor]]:
        """Have the first block take `entering`; the list that is yielded gets what the last block of a stage gives."""
        self._entering = entering
        try:
            yield self._left
        finally:
            self._entering = None
            self._left.clear()

    def _enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if args:
            return (self._entering, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self._entering}

    def _leave(self, block: nn.Module, args: object, output: Tensor | Sequence[Tensor]) -> None:
        self._left.append(output if isinstance(output, Tensor) else output[0])
