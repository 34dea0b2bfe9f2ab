"""AdamW, LAMB and SGD on flat buffers, made of separate fp32 operations.

No kernel of torch that merges them, and no fused multiply-add: every operation rounds by itself, so that like bits in
give like bits out on unlike hardware. The buffers are walked in blocks, which bounds the temporaries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from swarmflow.compute.adamw_kernel import AdamWKernel, adamw_kernel
from swarmflow.compute.finite import NotFiniteError, finite
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.flat_tensors import Blocks, sum_of_squares
from swarmflow.compute.layout import TensorSlot
from swarmflow.compute.update_checksums import UpdateChecksums, summed
from swarmflow.errors import ConfigError, FrameError
from swarmflow.suggestions import did_you_mean

BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer of a run. betas for adamw and lamb, momentum for sgd; weight_decay for all parameters alike."""

    name: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.9
    eps: float = 1e-8
    weight_decay: float = 0.1


class Optimizer(Protocol):
    """What updates the parameters of a reduction group in place."""

    def state_names(self) -> tuple[str, ...]:
        """Names of the state tensors, each fp32 and as long as the parameters."""
        ...

    def apply(
        self,
        group: FlatGroup,
        grads: Blocks,
        scale: float,
        lr: float,
        version: int,
        sums: UpdateChecksums | None = None,
    ) -> tuple[float, ...]:
        """One update with the gradient grads*scale. Raises NotFinite for a result that is not: the group is lost then.

        grads: fp32 [elements], unchanged. scale: clip factor / target tokens. lr: learning rate of this update.
        version: number of updates before this one. sums: to be taken of what is read and written. Returns the ratios
        that `follow` needs: one a tensor, or none.
        """
        ...

    def follow(
        self, group: FlatGroup, grads: Blocks, scale: float, lr: float, version: int, ratios: tuple[float, ...]
    ) -> None:
        """Make the same update of a group that is a part of another one. ratios: of its tensors, where there are any.

        Raises FrameError where they do not fit.
        """
        ...


def make_optimizer(settings: OptimizerSettings) -> Optimizer:
    """The optimizer named by the settings. Raises ConfigError for an unknown name."""
    known: dict[str, type[AdamW] | type[Lamb] | type[Sgd]] = {"adamw": AdamW, "lamb": Lamb, "sgd": Sgd}
    if settings.name not in known:
        hint = did_you_mean(settings.name, known)
        raise ConfigError(f"optimizer.name = {settings.name!r} is unknown{hint}; allowed: {', '.join(known)}")
    return known[settings.name](settings)


@torch.no_grad()
def _moments(
    settings: OptimizerSettings, group: FlatGroup, where: slice, grads: Blocks, scale: float, version: int
) -> Tensor:
    """Updates both moments of one block; returns adam's direction m_hat / (sqrt(v_hat) + eps) (Kingma & Ba, Alg. 1)."""
    beta1, beta2 = settings.betas
    g = grads[where] * scale
    squares = g * g
    group.state["exp_avg"][where].mul_(beta1).add_(g.mul_(1.0 - beta1))
    group.state["exp_avg_sq"][where].mul_(beta2).add_(squares.mul_(1.0 - beta2))
    return _direction(settings, group, where, version)


def _direction(settings: OptimizerSettings, group: FlatGroup, where: slice, version: int) -> Tensor:
    first, second = _corrections(settings, version)
    below = _square_root(group.state["exp_avg_sq"][where]).mul_(second).add_(settings.eps)
    _check(group, where, below)  # divided by infinity a first moment is 0, and the parameters would not show it
    return group.state["exp_avg"][where].div(below).mul_(first)


def _corrections(settings: OptimizerSettings, version: int) -> tuple[float, float]:
    """Return what the moments are multiplied by, the second one's root: they begin at zero.

    Reciprocals, for torch divides by a number by such on a GPU and not on a CPU.
    """
    beta1, beta2 = settings.betas
    return 1.0 / (1.0 - beta1 ** (version + 1)), 1.0 / math.sqrt(1.0 - beta2 ** (version + 1))


def _square_root(values: Tensor) -> Tensor:
    """Return the correctly rounded square root of each value.

    Torch's own is that on a GPU. On a CPU it is MKL's, of which 0.6% of the values differed in the last bit on an Intel
    and 20% on an AMD processor; numpy has the processor's instruction, which rounds correctly, at the same speed.
    """
    return torch.from_numpy(np.sqrt(values.numpy())) if values.device.type == "cpu" else values.sqrt()


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter, Alg. 2), as torch.optim.AdamW computes it."""

    settings: OptimizerSettings

    def state_names(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    @torch.no_grad()
    def apply(
        self,
        group: FlatGroup,
        grads: Blocks,
        scale: float,
        lr: float,
        version: int,
        sums: UpdateChecksums | None = None,
    ) -> tuple[float, ...]:
        kernel = adamw_kernel() if group.params.device.type == "cpu" else None
        for where in _blocks(0, group.params.numel()):
            if kernel is not None:
                self._update_by(kernel, group, where, grads[where], self._constants(scale, lr, version), sums)
                continue
            with summed(sums, group, where):
                step = _moments(self.settings, group, where, grads, scale, version).mul_(lr)
                group.params[where].mul_(1.0 - lr * self.settings.weight_decay).sub_(step)
                _check(group, where, group.params[where])
        return ()

    def follow(
        self, group: FlatGroup, grads: Blocks, scale: float, lr: float, version: int, ratios: tuple[float, ...]
    ) -> None:
        self.apply(group, grads, scale, lr, version)

    def _constants(self, scale: float, lr: float, version: int) -> tuple[float, ...]:
        """Return the numbers of adamw.c, in its order."""
        (beta1, beta2), settings = self.settings.betas, self.settings
        first, second = _corrections(settings, version)
        return (
            *(scale, beta1, 1.0 - beta1, beta2, 1.0 - beta2, second, settings.eps, first),
            *(lr, 1.0 - lr * settings.weight_decay),
        )

    def _update_by(
        self,
        kernel: AdamWKernel,
        group: FlatGroup,
        where: slice,
        gradient: Tensor,
        constants: tuple[float, ...],
        sums: UpdateChecksums | None,
    ) -> None:
        tensors = [group.params[where], *(group.state[name][where] for name in self.state_names())]
        wanted = None if sums is None else sums.of(group, where, ("params", *self.state_names()))
        if not kernel.update(tensors, gradient.contiguous(), constants, wanted):
            raise _not_finite(group, where)


@dataclass(frozen=True)
class Lamb:
    """LAMB (You et al. 2020, Alg. 2): adam's direction, scaled a tensor by |w| / |direction + weight_decay * w|."""

    settings: OptimizerSettings

    def state_names(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    @torch.no_grad()
    def apply(
        self,
        group: FlatGroup,
        grads: Blocks,
        scale: float,
        lr: float,
        version: int,
        sums: UpdateChecksums | None = None,
    ) -> tuple[float, ...]:
        with summed(sums, group, slice(0, group.params.numel())):  # its ranges are those of tensors
            return tuple(self._update(group, entry, grads, scale, lr, version) for entry in group.entries)

    def _update(
        self, group: FlatGroup, entry: TensorSlot, grads: Blocks, scale: float, lr: float, version: int
    ) -> float:
        """Update a tensor, and return its ratio."""
        weight_sq = update_sq = 0.0
        for where in _blocks(entry.offset, entry.stop):
            update = _moments(self.settings, group, where, grads, scale, version)
            update.add_(group.params[where] * self.settings.weight_decay)
            weight_sq += sum_of_squares(group.params[where])
            update_sq += sum_of_squares(update)
        ratio = math.sqrt(weight_sq / update_sq) if weight_sq > 0.0 and update_sq > 0.0 else 1.0
        self._descend(group, entry, lr * ratio, version)
        return ratio

    @torch.no_grad()
    def follow(
        self, group: FlatGroup, grads: Blocks, scale: float, lr: float, version: int, ratios: tuple[float, ...]
    ) -> None:
        if len(ratios) != len(group.entries):
            raise FrameError("an update of LAMB needs a ratio for each tensor")
        for entry, ratio in zip(group.entries, ratios, strict=True):
            for where in _blocks(entry.offset, entry.stop):
                _moments(self.settings, group, where, grads, scale, version)
            self._descend(group, entry, lr * ratio, version)

    def _descend(self, group: FlatGroup, entry: TensorSlot, rate: float, version: int) -> None:
        """Update a tensor. The direction is computed again, not kept: a tensor may be most of the stage's memory."""
        for where in _blocks(entry.offset, entry.stop):
            update = _direction(self.settings, group, where, version)
            update.add_(group.params[where] * self.settings.weight_decay)
            group.params[where].sub_(update.mul_(rate))
            _check(group, where, group.params[where])


@dataclass(frozen=True)
class Sgd:
    """SGD with momentum; weight decay is added to the gradient, as torch.optim.SGD does."""

    settings: OptimizerSettings

    def state_names(self) -> tuple[str, ...]:
        return ("momentum",) if self.settings.momentum else ()

    @torch.no_grad()
    def apply(
        self,
        group: FlatGroup,
        grads: Blocks,
        scale: float,
        lr: float,
        version: int,
        sums: UpdateChecksums | None = None,
    ) -> tuple[float, ...]:
        for where in _blocks(0, group.params.numel()):
            with summed(sums, group, where):
                step = (grads[where] * scale).add_(group.params[where] * self.settings.weight_decay)
                if self.settings.momentum:
                    step = group.state["momentum"][where].mul_(self.settings.momentum).add_(step) * lr
                else:
                    step.mul_(lr)
                group.params[where].sub_(step)
                _check(group, where, group.params[where])
        return ()

    def follow(
        self, group: FlatGroup, grads: Blocks, scale: float, lr: float, version: int, ratios: tuple[float, ...]
    ) -> None:
        self.apply(group, grads, scale, lr, version)


def _check(group: FlatGroup, where: slice, written: Tensor) -> None:
    """Raises NotFinite for what was just computed of a range, and is still in the cache."""
    if not finite(written):
        raise _not_finite(group, where)


def _not_finite(group: FlatGroup, where: slice) -> NotFiniteError:
    broken = [e.name for e in group.entries if e.offset < where.stop and where.start < e.stop]
    return NotFiniteError("update", broken[0])


def _blocks(start: int, stop: int) -> Iterator[slice]:
    for low in range(start, stop, BLOCK_ELEMENTS):
        yield slice(low, min(low + BLOCK_ELEMENTS, stop))
