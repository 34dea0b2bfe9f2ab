"""Dropout that a replay repeats: masks are drawn on the CPU from (run seed, step, microbatch, layer)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

ENTRY_LAYER = -1


@dataclass(frozen=True, slots=True)
class DrawKey:
    """What seeds the random draws of one microbatch, together with the layer."""

    seed: int
    step: int
    microbatch: int


def seed_of(*parts: object) -> int:
    """A 63-bit seed that depends on every part and on their order."""
    digest = blake3("/".join(str(part) for part in parts).encode()).digest(length=8)
    return int.from_bytes(digest, "little") >> 1


class SeededDropout(TorchFunctionMode):
    """While active, `torch.nn.functional.dropout` draws its masks from a CPU generator.

    `enter(layer)` reseeds the generator; `watch` calls it from hooks in front of every block. Masks are drawn on the
    CPU so that unlike devices drop the same elements.
    """

    def __init__(self, parts: Callable[[nn.Module], list[nn.Module]]) -> None:
        """parts: returns the parts of a module that drop something in training."""
        super().__init__()
        self._parts = parts
        self._generator = torch.Generator(device="cpu")
        self._key = DrawKey(0, 0, 0)
        self._of_model: list[nn.Module] = []
        self._of_layer: dict[int, list[nn.Module]] = {}

    def begin(self, key: DrawKey) -> SeededDropout:
        """Names the microbatch whose forward follows."""
        self._key = key
        self.enter(ENTRY_LAYER)
        return self

    def enter(self, layer: int) -> None:
        """Reseeds for a layer, so that its masks do not depend on where the model is cut."""
        self._generator.manual_seed(seed_of(self._key.seed, self._key.step, self._key.microbatch, layer))

    def again(self, layer: int) -> Redrawing:
        """Return the context in which a block later draws what it draws in the present forward pass."""
        return Redrawing(self, self._key, layer, self._of_layer[layer])

    def watch(self, model: nn.Module, blocks: Iterable[tuple[int, nn.Module]]) -> None:
        """Hooks the blocks of a model, given with their index in the whole one."""
        self._of_model = self._parts(model)
        for layer, block in blocks:
            self._of_layer[layer] = self._parts(block)
            block.register_forward_pre_hook(lambda module, args, layer=layer: self.enter(layer))

    def set_active(self, *, on: bool) -> None:
        """Have the model drop, or not."""
        for part in self._of_model:
            part.train(on)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func is nn.functional.dropout:
            return self._drop(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _drop(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0.0:
            return x
        return x * mask_of(x.shape, p, self._generator, x)


def mask_of(shape: Sequence[int], share: float, generator: torch.Generator, x: Tensor) -> Tensor:
    """Draw on the CPU by what a tensor is multiplied: zeros in a share of the places, and the same number elsewhere.

    x: on whose device, and in whose dtype it is to be.
    """
    kept = torch.rand(shape, generator=generator) >= share
    scale = 1.0 / (1.0 - share) if share < 1.0 else 0.0
    if x.device.type == "cuda":
        kept = kept.pin_memory()  # else the host would wait until the device has come to this layer
    return kept.to(x.device, non_blocking=True).to(x.dtype) * scale


class Redrawing:
    """The context in which a block draws the masks of one microbatch once more, also after a pass without dropout."""

    def __init__(self, dropout: SeededDropout, key: DrawKey, layer: int, parts: list[nn.Module]) -> None:
        self._dropout = dropout
        self._key = key
        self._layer = layer
        self._parts = parts
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> None:
        for part in self._parts:
            part.train()
        self._entered.enter_context(self._dropout.begin(self._key))
        self._dropout.enter(self._layer)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.close()
