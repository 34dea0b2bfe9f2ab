"""Runs the microbatches of one stage: forward, backward, loss. Called from the executor thread alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks
from torch.utils.hooks import RemovableHandle

from swarmflow.compute.device_work import AtOnce, DeviceWork, LossSum
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.finite import NotFiniteError, finite
from swarmflow.compute.grouped_stage import GraphInput, GroupedStage, PackedInput, StageInput
from swarmflow.compute.precision import HalfWeights
from swarmflow.compute.split_backward import SplitBackward, split
from swarmflow.compute.working_weights import WorkingWeights


@dataclass(frozen=True)
class _Held:
    """The graph of one microbatch. The output's values are not kept, only the place where its gradient enters."""

    leaf: Tensor | None
    edge: GradientEdge


class StageRunner:
    """Gradients are of the SUM of the tokens' losses and add up in the stage's flat buffers until they are cleared.

    Where they are rounded (`stage.rounding`), a pass names the microbatch by its number over all steps, and, with exact
    sums, raises ExponentOverflowError when a gradient does not fit. It
    raises NotFiniteError for a loss or a gradient that is not finite, as far as it looks: with `begin(careful=True)` at
    the output of every layer and at each microbatch's gradients, to name the layer. What follows is void until `begin`.

    work: of a pass, reads its numbers: with one that does not read at once these errors come from there, when the
    device is done. A careful step reads at once.

    precision: "fp32", or "bf16" for torch's autocast over fp32 master weights, with one bf16 copy of what is needed in
    bf16 alone (`GroupedStage.is_bf16_only`).
    Where the weights are in the memory of the host, passes compute with copies on the device (`working_weights.py`).
    copies: of parameters, that passes compute with; None: there are none.
    """

    def __init__(self, stage: GroupedStage, precision: str = "fp32") -> None:
        if precision not in ("fp32", "bf16"):
            raise ValueError(f"precision {precision!r}; allowed: fp32, bf16")
        self.stage = stage
        self.precision = precision
        self.copies: HalfWeights | WorkingWeights | None = None
        if stage.in_host_memory:
            self.copies = WorkingWeights(stage, precision)
        elif precision == "bf16":
            self.copies = HalfWeights(stage)
        self._graphs: dict[Hashable, _Held] = {}
        self._begun: dict[Hashable, SplitBackward] = {}
        self._hooks: list[RemovableHandle] = []
        self._kept_share = 1.0

    @property
    def held(self) -> int:
        """Number of microbatches whose graphs are kept."""
        return len(self._graphs) + len(self._begun)

    def forward(self, key: Hashable, x: StageInput, draw: DrawKey | None = None) -> Tensor:
        """Tokens int [B, T] (stage 0) or hidden [B, T, H] -> hidden [B, T, H], keeping the graph under `key`.

        draw: seeds dropout; needed where it is on. A graph already kept under the key is replaced.
        """
        leaf, output = self._forward(x, draw)
        self._graphs[key] = _Held(leaf, get_gradient_edge(output))
        return output.detach()

    def recompute(self, x: StageInput, draw: DrawKey | None = None) -> Tensor:
        """The output of `forward`, to the bit, keeping nothing.

        It builds the graph all the same: without one torch may choose other kernels, whose results round differently.
        But what the graph would save for a backward pass goes at once: it may not cost the memory of one.
        """
        with self.stage.block_recompute.paused(), saved_tensors_hooks(lambda tensor: None, lambda nothing: nothing):
            return self._forward(x, draw)[1].detach()

    def backward(
        self, key: Hashable, grad: Tensor, number: int = 0, *, defer: bool = False, work: DeviceWork | None = None
    ) -> Tensor | None:
        """Backward of a kept microbatch, from the gradient [B, T, H] of its output; its graph is freed.

        defer: leave the parameters' gradients to `finish`, where that can be (`unfinished`): not on stage 0, not in
        careful steps. Together they have the bits of one pass. Returns the gradient of its input [B, T, H], None on
        stage 0. Raises KeyError when no graph is kept.
        """
        held = self._graphs.pop(key)
        grad = grad.to(self.stage.device)
        if defer and self._defer(key, held.edge, grad, held.leaf):
            return held.leaf.grad if held.leaf is not None else None
        with self.stage.gathering(1, number, _reader(self, work)):
            torch.autograd.backward([held.edge], [grad])
            self._check(held.leaf)
        return None if held.leaf is None else held.leaf.grad

    def _defer(self, key: Hashable, edge: GradientEdge, grad: Tensor, leaf: Tensor | None) -> bool:
        """Compute the gradient of the input alone; return whether that could be."""
        in_one = leaf is None or self._hooks or self.stage.block_recompute.in_one
        rest = None if leaf is None or in_one else split(edge, grad, leaf)
        if rest is not None:
            self._begun[key] = rest
        return rest is not None

    def unfinished(self, key: Hashable) -> bool:
        """Whether the parameters' gradients of a microbatch were left to `finish`."""
        return key in self._begun

    def finish(self, key: Hashable, number: int = 0, work: DeviceWork | None = None) -> None:
        """Compute the parameters' gradients that a pass has left, and free its graph. Raises KeyError: none has."""
        rest = self._begun.pop(key)
        with self.stage.gathering(1, number, _reader(self, work)):
            rest.accumulate()

    def loss(
        self,
        key: Hashable,
        x: StageInput,
        targets: Tensor,
        draw: DrawKey | None = None,
        number: int = 0,
        *,
        defer: bool = False,
    ) -> tuple[float, int, Tensor | None]:
        """Forward and backward of the last stage in one go: (sum of the losses, tokens, gradient of the input).

        targets: int [B, T]. defer: leave the gradients of the parameters before the head to `finish`, as in `backward`;
        else nothing is kept. The gradient is None where the last stage is also the first.
        """
        total, count, gradient = self.launch_loss(key, x, targets, draw, number, defer=defer)
        return total.value, count, gradient

    def launch_loss(
        self,
        key: Hashable,
        x: StageInput,
        targets: Tensor,
        draw: DrawKey | None = None,
        number: int = 0,
        *,
        defer: bool = False,
        work: DeviceWork | None = None,
    ) -> tuple[LossSum, int, Tensor | None]:
        """As `loss`, with a sum that is known when `work` has read it."""
        self.drop(key)
        return self._loss(x, targets, draw, 1, number, _reader(self, work), key if defer else None)

    def replay(
        self,
        x: StageInput,
        weight: int,
        *,
        grad: Tensor | None = None,
        targets: Tensor | None = None,
        draw: DrawKey | None = None,
        number: int = 0,
        work: DeviceWork | None = None,
    ) -> Tensor | None:
        """Forward and backward once more, to add the gradients of a microbatch (weight 1) or take them away (-1).

        grad: of the output [B, T, H]; on the last stage targets [B, T] instead. weight 1 adds the parameters' gradients
        to the sums, weight -1 subtracts them: exactly where sums are integers, with a rounding error in fp32. weight 0
        leaves the sums as they are, and is not allowed on the first stage. Weights 0 and 1 return the gradient of the
        input [B, T, H], equal to the bit to the first computation's; None on the first stage, and with weight -1.
        """
        if targets is not None:
            gradient = self._loss(x, targets, draw, weight, number, _reader(self, work))[2]
            return gradient if weight >= 0 else None
        assert grad is not None
        leaf, output = self._forward(x, draw)
        grad = grad.to(self.stage.device) * _factor(self.stage, weight)
        with self.stage.gathering(weight, number, _reader(self, work)):
            torch.autograd.backward(output, grad, inputs=_only(leaf, weight))
            self._check(leaf)
        return None if leaf is None or weight < 0 else leaf.grad

    @torch.no_grad()
    def evaluate(
        self, x: StageInput, targets: Tensor | None = None, work: DeviceWork | None = None
    ) -> Tensor | tuple[LossSum, int]:
        """Forward only, without dropout and without a graph: hidden [B, T, H], or (sum of the losses, tokens)."""
        with self._precision():
            hidden = self.stage.trunk(self.stage.enter(x)[1])
            if targets is None:
                return hidden
            count, work, total = self.stage.count(targets), _reader(self, work), LossSum()
            pieces = self.stage.pieces(hidden, work.copy_in(targets))
            work.read([torch.stack([self.stage.head_loss(*piece) for piece in pieces])], total.put)
            return total, count

    def drop(self, key: Hashable) -> None:
        """Free the graph of the microbatch `key`, if it is kept."""
        self._graphs.pop(key, None)
        self._begun.pop(key, None)

    def forget_graphs(self) -> None:
        """Free all graphs."""
        self._graphs.clear()
        self._begun.clear()

    def clear(self) -> None:
        """Free all graphs and set the gradients to zero."""
        self.forget_graphs()
        self.stage.zero_grads()

    def begin(self, exponent: int, careful: bool = False, *, kept_share: float = 1.0) -> None:
        """Begin a step: free all graphs and set the gradients to zero.

        exponent: of the integers that gradients become, where they are rounded. careful: check the output of every
        layer, so that the error of a value that is not finite names the layer. kept_share: of the
        numbers of an input, those that a codec has kept. The zeros that stand for the others have no gradient, and the
        kept ones are multiplied by the root of 1 / kept_share, so that an input does not become small.
        """
        self._kept_share = kept_share
        if self.stage.rounding is not None:
            self.stage.rounding.exponent = exponent
        self.clear()
        for hook in self._hooks:
            hook.remove()
        units = self.stage.units
        self._hooks = [units[n].register_forward_hook(_checking(n)) for n in self.stage.order] if careful else []

    def weights_written(self) -> None:
        """Drop the copies of the parameters. Call this after a write that torch cannot see (a memoryview)."""
        if self.copies is not None:
            self.copies.forget()

    def copy_weights(self) -> None:
        """Copy the parameters where the passes need them, if they have changed; a pass does it else."""
        if self.copies is not None:
            self.copies.refresh()

    def activation_bytes(self, x: StageInput, draw: DrawKey | None = None) -> int:
        """Run a trial forward; return the bytes that its graph keeps for the backward, without the weights."""
        with _counting(_storages(self)) as sizes:
            leaf, output = self._forward(x, draw)
            if leaf is not None:
                sizes[leaf.untyped_storage().data_ptr()] = leaf.untyped_storage().nbytes()
            total = sum(sizes.values())
        del output
        return total

    def _loss(
        self,
        x: StageInput,
        targets: Tensor,
        draw: DrawKey | None,
        weight: int,
        number: int,
        work: DeviceWork,
        defer: Hashable | None = None,
    ) -> tuple[LossSum, int, Tensor | None]:
        count = self.stage.count(targets)  # before they are on a device, which would be waited for
        targets = work.copy_in(targets)
        leaf, hidden = self._forward(x, draw)
        # The head's graph ends at a detached copy, so that the logits of one piece are freed before the next ones.
        top = hidden.detach().requires_grad_()
        with self.stage.gathering(weight, number, work):
            total = self._head(top, targets, weight, work)
            assert top.grad is not None
            if defer is None or not self._defer(defer, get_gradient_edge(hidden), top.grad, leaf):
                torch.autograd.backward(hidden, top.grad, inputs=_only(leaf, weight))
            self._check(leaf)
        return total, count, None if leaf is None else leaf.grad

    def _head(self, top: Tensor, targets: Tensor, weight: int, work: DeviceWork) -> LossSum:
        """Forward and backward of the head, piece by piece; return the sum of the losses. Raises NotFiniteError."""
        total, losses = LossSum(), list[Tensor]()
        for piece, wanted in self.stage.pieces(top, targets):
            with self._precision():
                loss = self.stage.head_loss(piece, wanted)
            torch.autograd.backward(loss, torch.full_like(loss, _factor(self.stage, weight)), inputs=_only(top, weight))
            losses.append(loss.detach())
        extra = self.stage.extra_loss(top, targets)
        if extra is not None:
            torch.autograd.backward(
                extra, torch.full_like(extra, _factor(self.stage, weight)), inputs=_only(top, weight)
            )
            losses.append(extra.detach().float())
        work.read([torch.stack(losses)], total.settle)
        return total

    def _check(self, leaf: Tensor | None) -> None:
        """Check the gradients after a backward of a careful step. Raises NotFiniteError with the layer."""
        if not self._hooks:
            return
        layer = self.stage.gradients_broken_in()
        if layer is None and leaf is not None and leaf.grad is not None and not finite(leaf.grad):
            layer = self.stage.order[0]  # a later layer would have spoiled parameters' gradients too
        if layer is not None:
            raise NotFiniteError("gradient", layer)

    def _forward(self, x: StageInput, draw: DrawKey | None) -> tuple[Tensor | None, Tensor]:
        """Return (the input as autograd leaf, None on stage 0; hidden [B, T, H] with its graph)."""
        leaf, entered = self._enter(x, draw)
        with self._precision():
            return leaf, self.stage.trunk(entered, draw)

    def _enter(self, x: StageInput, draw: DrawKey | None) -> tuple[Tensor | None, StageInput]:
        if self.stage.dropout and draw is None:
            raise ValueError("dropout is on: training needs the key that seeds it")
        leaf, entered = self.stage.enter(x)
        if self._kept_share < 1.0 and leaf is not None:
            rescaled = self.stage.rescaled(leaf, math.sqrt(1.0 / self._kept_share))
            match entered:
                case PackedInput():
                    entered = replace(entered, x=rescaled)
                case GraphInput():
                    entered = replace(entered, boundary=rescaled)
                case _:
                    entered = rescaled
        return leaf, entered

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        self.copy_weights()
        if self.precision == "fp32" or not self.stage.autocast:
            return contextlib.nullcontext()
        return torch.autocast(self.stage.device.type, dtype=torch.bfloat16)


def largest_block_bytes(runner: StageRunner, x: StageInput, draw: DrawKey | None = None) -> int:
    """Run a trial forward; return the bytes that the largest block keeps for the backward, without the weights."""
    with runner.stage.block_recompute.counted(partial(_counting, _storages(runner))) as kept_bytes:
        runner._forward(x, draw)
    return max(kept_bytes, default=0)


def _storages(runner: StageRunner) -> set[int]:
    """Return the addresses of the memory of the weights."""
    found = {group.params.untyped_storage().data_ptr() for group in runner.stage.groups.values()}
    found |= runner.copies.storages if runner.copies is not None else set()
    return found | (set() if runner.stage.base is None else {runner.stage.base.untyped_storage().data_ptr()})


def _reader(runner: StageRunner, work: DeviceWork | None) -> DeviceWork:
    """Return what reads the numbers of a pass."""
    return AtOnce(runner.stage.device) if work is None or runner._hooks else work


def _factor(stage: GroupedStage, weight: int) -> float:
    """Return the factor of a gradient in autograd: the weight in fp32. `Stage.gathering` applies it to integers."""
    return float(weight) if stage.rounding is None and weight else 1.0


def _checking(name: str) -> Callable[[nn.Module, Any, Any], None]:
    """Return a forward hook that raises NotFiniteError when the output of the layer `name` is not finite."""

    def check(layer: nn.Module, given: object, output: object) -> None:
        for value in output if isinstance(output, tuple) else (output,):
            if isinstance(value, Tensor) and value.is_floating_point() and not finite(value):
                raise NotFiniteError("activation", name)

    return check


def _only(leaf: Tensor | None, weight: int) -> list[Tensor] | None:
    """Return the `inputs` of a backward: with weight 0 the leaf alone; None, every parameter too, otherwise."""
    if weight:
        return None
    assert leaf is not None, "with weight 0 there is nothing else to compute"
    return [leaf]


@contextlib.contextmanager
def _counting(weights: set[int]) -> Iterator[dict[int, int]]:
    """Collects the storages that autograd saves, other than these weights': address -> bytes. No backward may follow.

    The graph is left without what it saved: a saved tensor handed back by a hook would refer to the graph that holds
    it, and neither would ever go.
    """
    sizes: dict[int, int] = {}
    kept: list[torch.UntypedStorage] = []

    def note(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(storage)  # an address that is freed could be used again and be counted once for two

    with saved_tensors_hooks(note, lambda nothing: nothing):
        yield sizes
    kept.clear()
