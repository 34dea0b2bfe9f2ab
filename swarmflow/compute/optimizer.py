"""AdamW, LAMB and SGD on flat buffers, made of separate fp32 operations.

No kernel of torch that merges them, and no fused multiply-add: every operation rounds by itself, so that like bits in
give like bits out on unlike hardware. The buffers are walked in blocks, which bounds the temporaries.

An update is made of the moments in fp32, before they are rounded to 8 bits where they are stored so. LAMB needs them
twice, for the norm of the direction and for the update: it computes them again from the stored ones, which it replaces
at the end alone.
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
from swarmflow.compute.layout import FROZEN, TensorSlot
from swarmflow.compute.moments import CodedMoment, FullMoment, Moment, names_of
from swarmflow.compute.update_checksums import UpdateChecksums, summed
from swarmflow.errors import ConfigError, FrameError
from swarmflow.manifest import Manifest
from swarmflow.suggestions import did_you_mean

BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer of a run. betas for adamw and lamb, momentum for sgd; weight_decay for all parameters alike.

    state_bits: of a number of a moment as it is stored, 8 or 32. With 8 every parameter of a group has to begin at the
    edge of a block of 256 (`stage_layout`), so that blocks are whole where tensors are updated one by one.
    """

    name: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.9
    eps: float = 1e-8
    weight_decay: float = 0.1
    state_bits: int = 32

    @classmethod
    def of(cls, run: Manifest) -> OptimizerSettings:
        """Return those of a run."""
        return cls(run.optimizer, run.betas, run.momentum, run.eps, run.weight_decay, run.state_bits)

    def moment(self, name: str, *, signed: bool) -> Moment:
        """Return a moment as it is stored."""
        return CodedMoment(name, signed) if self.state_bits == 8 else FullMoment(name)

    def adam_moments(self) -> tuple[Moment, Moment]:
        """Return the first and the second moment of adamw and lamb."""
        return self.moment("exp_avg", signed=True), self.moment("exp_avg_sq", signed=False)


class Optimizer(Protocol):
    """What updates the parameters of a reduction group in place."""

    def state_names(self) -> tuple[str, ...]:
        """Names of the state tensors, which tell their lengths and dtypes (`state_root.py`)."""
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
    return TrainedOnly(known[settings.name](settings))


@dataclass(frozen=True)
class TrainedOnly:
    """An optimizer that leaves the group `frozen` as it is: weight decay would move what has no gradient."""

    inner: Optimizer

    def state_names(self) -> tuple[str, ...]:
        return self.inner.state_names()

    def apply(
        self,
        group: FlatGroup,
        grads: Blocks,
        scale: float,
        lr: float,
        version: int,
        sums: UpdateChecksums | None = None,
    ) -> tuple[float, ...]:
        if group.name != FROZEN:
            return self.inner.apply(group, grads, scale, lr, version, sums)
        with summed(sums, group, slice(0, group.params.numel())):
            return ()

    def follow(
        self, group: FlatGroup, grads: Blocks, scale: float, lr: float, version: int, ratios: tuple[float, ...]
    ) -> None:
        if group.name != FROZEN:
            self.inner.follow(group, grads, scale, lr, version, ratios)


@torch.no_grad()
def _moments(
    settings: OptimizerSettings,
    group: FlatGroup,
    where: slice,
    grads: Blocks,
    scale: float,
    version: int,
    *,
    store: bool = True,
) -> Tensor:
    """Updates both moments of one block; returns adam's direction m_hat / (sqrt(v_hat) + eps) (Kingma & Ba, Alg. 1).

    store: keep the moments, which fp32 ones are anyway.
    """
    (beta1, beta2), (first, second) = settings.betas, settings.adam_moments()
    g = grads[where] * scale
    squares = g * g
    mean = first.read(group.state, where).mul_(beta1).add_(g.mul_(1.0 - beta1))
    spread = second.read(group.state, where).mul_(beta2).add_(squares.mul_(1.0 - beta2))
    direction = _direction(settings, group, where, version, mean, spread)
    if store:
        first.write(group.state, where, mean)
        second.write(group.state, where, spread)
    return direction


def _direction(
    settings: OptimizerSettings, group: FlatGroup, where: slice, version: int, mean: Tensor, spread: Tensor
) -> Tensor:
    first, second = _corrections(settings, version)
    below = _square_root(spread).mul_(second).add_(settings.eps)
    _check(group, where, below)  # divided by infinity a first moment is 0, and the parameters would not show it
    return mean.div(below).mul_(first)


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
        return names_of(self.settings.adam_moments())

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
        by_kernel = group.params.device.type == "cpu" and self.settings.state_bits == 32
        kernel = adamw_kernel() if by_kernel else None
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
        return names_of(self.settings.adam_moments())

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
            update = _moments(self.settings, group, where, grads, scale, version, store=False)
            update.add_(group.params[where] * self.settings.weight_decay)
            weight_sq += sum_of_squares(group.params[where])
            update_sq += sum_of_squares(update)
        ratio = math.sqrt(weight_sq / update_sq) if weight_sq > 0.0 and update_sq > 0.0 else 1.0
        if self.settings.state_bits == 32:
            self._descend(group, entry, lr * ratio, version)
        else:
            self._descend_with_moments(group, entry, lr * ratio, grads, scale, version)
        return ratio

    @torch.no_grad()
    def follow(
        self, group: FlatGroup, grads: Blocks, scale: float, lr: float, version: int, ratios: tuple[float, ...]
    ) -> None:
        if len(ratios) != len(group.entries):
            raise FrameError("an update of LAMB needs a ratio for each tensor")
        for entry, ratio in zip(group.entries, ratios, strict=True):
            self._descend_with_moments(group, entry, lr * ratio, grads, scale, version)

    def _descend(self, group: FlatGroup, entry: TensorSlot, rate: float, version: int) -> None:
        """Update a tensor. The direction is computed again, not kept: a tensor may be most of the stage's memory."""
        first, second = self.settings.adam_moments()
        for where in _blocks(entry.offset, entry.stop):
            mean, spread = first.read(group.state, where), second.read(group.state, where)
            self._step(group, where, rate, _direction(self.settings, group, where, version, mean, spread))

    def _descend_with_moments(
        self, group: FlatGroup, entry: TensorSlot, rate: float, grads: Blocks, scale: float, version: int
    ) -> None:
        """Update a tensor and its moments."""
        for where in _blocks(entry.offset, entry.stop):
            self._step(group, where, rate, _moments(self.settings, group, where, grads, scale, version))

    def _step(self, group: FlatGroup, where: slice, rate: float, direction: Tensor) -> None:
        direction.add_(group.params[where] * self.settings.weight_decay)
        group.params[where].sub_(direction.mul_(rate))
        _check(group, where, group.params[where])


@dataclass(frozen=True)
class Sgd:
    """SGD with momentum; weight decay is added to the gradient, as torch.optim.SGD does."""

    settings: OptimizerSettings

    def state_names(self) -> tuple[str, ...]:
        return self._moment.names() if self.settings.momentum else ()

    @property
    def _moment(self) -> Moment:
        return self.settings.moment("momentum", signed=True)

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
                    momentum = self._moment.read(group.state, where).mul_(self.settings.momentum).add_(step)
                    step = momentum * lr
                    self._moment.write(group.state, where, momentum)
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
