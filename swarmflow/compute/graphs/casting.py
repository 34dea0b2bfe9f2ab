"""bf16 for a module: torch's autocast, as on the CPU, with its casts as operators of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

_ATEN = torch.ops.aten

# Whose CUDA kernels want input and weights in one dtype. The CPU's autocast leaves both as they are.
_NORMS = frozenset((_ATEN.layer_norm.default, _ATEN.group_norm.default, _ATEN.rms_norm.default))

# With parameters as a list; of a packed sequence they have other arguments.
_LAYERS: dict[object, Any] = {
    torch.gru: _ATEN.gru.input,
    torch.lstm: _ATEN.lstm.input,
    torch.rnn_tanh: _ATEN.rnn_tanh.input,
    torch.rnn_relu: _ATEN.rnn_relu.input,
}
_CELLS: dict[object, Any] = {
    torch.gru_cell: _ATEN.gru_cell.default,
    torch.lstm_cell: _ATEN.lstm_cell.default,
    torch.rnn_tanh_cell: _ATEN.rnn_tanh_cell.default,
    torch.rnn_relu_cell: _ATEN.rnn_relu_cell.default,
}


@contextmanager
def casting(precision: str) -> Iterator[None]:
    """Have the user's module compute in a run's precision inside the block."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        yield


@contextmanager
def casting_within(precision: str) -> Iterator[None]:
    """As `casting`, for an export: also within operators that torch.export keeps whole and of which autocast is a part.

    Not within `torch.inner` and `torch.linalg.multi_dot`, which compute in the dtype of what they are given.
    """
    with casting(precision):
        if precision == "fp32":
            yield
        else:
            with _Decomposed():
                yield


def is_mixed_norm(node: fx.Node) -> bool:
    """Return whether a node is a norm of a bf16 tensor with other weights."""
    if node.target not in _NORMS:
        return False
    dtypes = [value.dtype for each in node.all_input_nodes if isinstance(value := each.meta.get("val"), Tensor)]
    return dtypes[0] == torch.bfloat16 and set(dtypes) != {torch.bfloat16}


class _Decomposed(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is torch.einsum:
            equation, *given = args
            operands = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
            if isinstance(equation, str):
                return _ATEN.einsum.default.decompose(equation, list(operands))
        elif func is torch.tensordot:
            dims = args[2] if len(args) > 2 else kwargs.get("dims", 2)
            if isinstance(dims, int) and dims >= 0:
                dims = list(range(-dims, 0)), list(range(dims))
            if isinstance(dims, list | tuple) and kwargs.get("out") is None:
                sides = ([side] if isinstance(side, int) else list(side) for side in dims)
                return _ATEN.tensordot.default.decompose(*args[:2], *sides)
        elif func in _LAYERS and isinstance(args[2], list | tuple):
            return _LAYERS[func].decompose(*args, **kwargs)
        elif func in _CELLS:
            return _CELLS[func].decompose(*args, **kwargs)
        return func(*args, **kwargs)
