"""How the checkpoints of a family hold what its model has in one tensor: experts one by one, or some rows in each.

A checkpoint's tensors are parts of the model's. Which ones is seen from what transformers does in saving, with numbers
that tell where they came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

_ROWS = 2  # of an expert, in what is converted to see what becomes of it: gate and up


class UnreadTensor(Protocol):
    """What safetensors gives for a tensor that is not read yet."""

    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...
    def __getitem__(self, rows: slice) -> Tensor: ...


def stored_experts(model: PreTrainedModel, name: str, experts: int) -> tuple[tuple[str, ...], ...]:
    """Return, for each expert, the tensors of a checkpoint that are its rows in a parameter [E, rows, columns].

    name: of the parameter. Empty where the family's checkpoints hold it in another way.
    """
    parts = _parts(model, name, torch.arange(float(experts * _ROWS)).view(experts, _ROWS, 1), 2)
    found: list[tuple[str, ...]] = []
    for expert in range(experts):
        row, names = 0, []
        while row < _ROWS:
            stored, rows = parts.get(float(expert * _ROWS + row), ("", 0))
            if not rows or row + rows > _ROWS:
                return ()
            names.append(stored)
            row += rows
        found.append(tuple(names))
    return tuple(found)


def stored_rows(model: PreTrainedModel, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the tensors of a checkpoint of which a parameter's rows consist, in their order.

    name, shape: of the parameter. Empty where the family's checkpoints hold it in another way.
    """
    rows = shape[0]
    parts = _parts(model, name, torch.arange(float(rows)).view(rows, *(1 for _ in shape[1:])), len(shape))
    row, names = 0, list[str]()
    while row < rows:
        stored, count = parts.get(float(row), ("", 0))
        if not count:
            return ()
        names.append(stored)
        row += count
    return tuple(names)


def _parts(model: PreTrainedModel, name: str, probe: Tensor, dimensions: int) -> dict[float, tuple[str, int]]:
    """Return the stored tensors of a parameter by their first number, with how many numbers each has.

    probe: numbers counted up, for the parameter. dimensions: of a stored tensor. Empty where one of them has other
    dimensions, or numbers that do not follow one another.
    """
    parts: dict[float, tuple[str, int]] = {}
    for stored, part in revert_weight_conversion(model, {name: probe}).items():
        numbers = part.flatten().tolist()
        if part.ndim != dimensions or numbers != [numbers[0] + n for n in range(len(numbers))]:
            return {}
        parts[numbers[0]] = stored, len(numbers)
    return parts


class JoinedRows:
    """A tensor that is stored in several, some rows in each, with the interface of an unread tensor."""

    def __init__(self, parts: Sequence[UnreadTensor]) -> None:
        """parts: in the order of their rows."""
        self._parts = parts

    def get_shape(self) -> list[int]:
        """Return the shape; none where the rows of the parts differ."""
        shapes = [part.get_shape() for part in self._parts]
        if any(shape[1:] != shapes[0][1:] for shape in shapes):
            return []
        return [sum(shape[0] for shape in shapes), *shapes[0][1:]]

    def get_dtype(self) -> str:
        """Return the type of the numbers; all types where there are several."""
        return "/".join(sorted({part.get_dtype() for part in self._parts}))

    def __getitem__(self, rows: slice) -> Tensor:
        """Return some of the rows."""
        return torch.cat([part[:] for part in self._parts])[rows]


class StackedExperts:
    """The experts of a layer in one, read from their own tensors, with the interface of an unread tensor."""

    def __init__(self, parts: tuple[tuple[str, ...], ...], opened: Mapping[str, UnreadTensor]) -> None:
        """parts: of each expert, the names of its tensors, in the order of their rows. opened: these tensors."""
        self._parts = [[opened[name] for name in names] for names in parts]

    def get_shape(self) -> list[int]:
        """Return [E, rows, columns]; no shape of three dimensions where the experts differ."""
        shapes = [[part.get_shape() for part in parts] for parts in self._parts]
        first = shapes[0]
        if any(each != first for each in shapes) or any(len(s) != 2 or s[1] != first[0][1] for s in first):
            return []
        return [len(shapes), sum(shape[0] for shape in first), first[0][1]]

    def get_dtype(self) -> str:
        """Return the type of the numbers; all types where there are several."""
        return "/".join(sorted({part.get_dtype() for parts in self._parts for part in parts}))

    def __getitem__(self, rows: slice) -> Tensor:
        """Return some of the experts."""
        return torch.stack([torch.cat([part[:] for part in parts]) for parts in self._parts[rows]])
