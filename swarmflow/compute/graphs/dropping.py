"""Dropout of a module: operators of its graph, each with masks that follow from the microbatch and its own number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from swarmflow.compute.dropout import DrawKey, mask_of, seed_of
from swarmflow.errors import ModelError

_FUNCTIONS = nn.functional
_EACH = frozenset((_FUNCTIONS.dropout, torch.dropout))
_CHANNELS = frozenset((_FUNCTIONS.dropout1d, _FUNCTIONS.dropout2d, _FUNCTIONS.dropout3d, torch.feature_dropout))
_OTHERS = frozenset(
    (_FUNCTIONS.alpha_dropout, _FUNCTIONS.feature_alpha_dropout, torch.alpha_dropout, torch.feature_alpha_dropout)
)

# Dimensions of an input without one for items.
_OF_ONE_ITEM: dict[object, int] = {_FUNCTIONS.dropout1d: 2, _FUNCTIONS.dropout3d: 4}

# The place of dropout_p among the arguments. Within one of these functions the modes below are off.
_DROPOUT_P = {_FUNCTIONS.scaled_dot_product_attention: 4, _FUNCTIONS.multi_head_attention_forward: 10}


@torch.library.custom_op("swarmflow::drop", mutates_args=())
def _drop(x: Tensor, share: float, number: int, channels: bool) -> Tensor:
    """Stand for a dropout in a graph; a stage puts a `MaskedDropout` in its place."""
    return x.clone()


def _passed_on(context: object, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    return gradient, None, None, None


_drop.register_autograd(_passed_on)


@_drop.register_fake
def _(x: Tensor, share: float, number: int, channels: bool) -> Tensor:
    return torch.empty_like(x)


def is_drop(node: fx.Node) -> bool:
    """Return whether a node of a graph is a dropout."""
    return node.target is torch.ops.swarmflow.drop.default


class MaskedDropout(nn.Module):
    """A dropout on a stage.

    share: that is dropped. number: of the dropout in the module. channels: whole channels, the second dimension, are
    dropped. key: names the microbatch; None: nothing is dropped.
    """

    def __init__(self, share: float, number: int, channels: bool, key: Callable[[], DrawKey | None]) -> None:
        super().__init__()
        self._share = share
        self._number = number
        self._channels = channels
        self._key = key

    @classmethod
    def of(cls, node: fx.Node, key: Callable[[], DrawKey | None]) -> MaskedDropout:
        """Return the dropout that a node stands for."""
        _, share, number, channels = node.args
        assert isinstance(share, float), "as `_drop` has them"
        assert isinstance(number, int), "as `_drop` has them"
        return cls(share, number, bool(channels), key)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, of which a share is zero and the rest as much larger."""
        key = self._key()
        if key is None:
            return x
        generator = torch.Generator().manual_seed(seed_of(key.seed, key.step, key.microbatch, self._number))
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self._channels else tuple(x.shape)
        return x * mask_of(shape, self._share, generator, x)


@contextmanager
def without_dropout() -> Iterator[None]:
    """No dropout inside the block, neither that of modules nor that of functions."""
    with _Undropped():
        yield


@contextmanager
def numbered_dropouts(name: str) -> Iterator[None]:
    """Have each dropout inside the block be an operator, and be numbered.

    name: of the module, for messages. An attention that drops is computed in its parts. Raises ModelError for
    nn.MultiheadAttention with dropout, and for a dropout that does more than to multiply by a mask.
    """
    with _Numbering(name):
        yield


class _Undropped(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func in _EACH | _CHANNELS | _OTHERS:
            return args[0] if args else kwargs["input"]
        place = _DROPOUT_P.get(func)
        if place is not None:
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)


class _Numbering(TorchFunctionMode):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._count = 0

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func in _EACH | _CHANNELS | _OTHERS:
            return self._numbered(func, *args, **kwargs)
        if func is _FUNCTIONS.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is _FUNCTIONS.multi_head_attention_forward:
            place = _DROPOUT_P[func]
            share = args[place] if len(args) > place else kwargs.get("dropout_p", 0.0)
            if share and kwargs.get("training", True):
                raise ModelError(
                    f"{self._name}: its {func.__name__} drops within a fused operator, whose masks no replay can draw "
                    "again; give it no dropout, or compute the attention with scaled_dot_product_attention"
                )
        return func(*args, **kwargs)

    def _numbered(
        self,
        func: Callable[..., object],
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        *,
        train: bool = True,
    ) -> Tensor:
        if not (training and train) or p == 0.0:
            return input
        if func in _OTHERS:
            raise ModelError(f"{self._name}: its {func.__name__} is not supported with model.dropout = true")
        if not 0.0 <= p <= 1.0:
            raise ModelError(f"{self._name}: its {func.__name__} drops a share of {p}; it has to be from 0 to 1")
        self._count += 1
        one = input.dim() == _OF_ONE_ITEM.get(func)
        dropped: Tensor = torch.ops.swarmflow.drop(
            input.unsqueeze(0) if one else input, float(p), self._count - 1, func in _CHANNELS
        )
        dropped = dropped.squeeze(0) if one else dropped
        return input.copy_(dropped) if inplace else dropped

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """As torch's, [..., T, E], [..., S, E] and [..., S, F] -> [..., T, F], but what it drops is an operator."""
        if dropout_p == 0.0 or (is_causal and attn_mask is not None):  # torch refuses both together
            fused: Tensor = _FUNCTIONS.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
            return fused
        if enable_gqa:
            copies = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(copies, -3), value.repeat_interleave(copies, -3)
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        # In fp32, as within torch's. Where a query sees no key the weights are zeros, not 0 / 0.
        weights: Tensor = torch.ops.aten._safe_softmax(scores.float(), -1)
        return self._numbered(_FUNCTIONS.dropout, weights.to(value.dtype), dropout_p) @ value
