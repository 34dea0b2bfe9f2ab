"""The state of one stage as named flat tensors: read and written by ranges, named by a digest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor

from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.flat_tensors import digest, memory_of, piece_sums
from swarmflow.compute.state_root import piece_elements, tensor_name

CHUNK_ELEMENTS = 1 << 20  # 4 MiB of fp32 at a time: a disk's full speed, and little memory beside the stage's
BEFORE = "before_"  # begins the names of what belongs to the version before, where updates are delayed


class StageState:
    """Parameters and optimizer state of a stage's groups, in a fixed order: `own.params`, `own.exp_avg`, ...

    All are flat, and fp32 but for the 8-bit numbers that `state_root.item_bytes` names. others: what goes with them,
    under names of its own.
    """

    def __init__(self, groups: Mapping[str, FlatGroup], others: Mapping[str, Tensor] | None = None) -> None:
        self._tensors = {
            tensor_name(group.name, name): tensor
            for group in groups.values()
            for name, tensor in group.tensors().items()
        }
        self._tensors.update(others or {})

    def beside(self, others: Mapping[str, Tensor]) -> StageState:
        """Return this state with other tensors beside it."""
        return StageState({}, {**self._tensors, **others})

    def elements(self) -> dict[str, int]:
        """Name -> length of every tensor."""
        return {name: tensor.numel() for name, tensor in self._tensors.items()}

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Elements [start, stop) as bytes. Raises KeyError, ValueError for what is not there."""
        part = self._part(name, start, stop)
        return bytes(memory_of(part.cpu()))

    @torch.no_grad()
    def write(self, name: str, start: int, data: memoryview) -> None:
        """Set the elements from `start` on. Raises KeyError, ValueError for what does not fit."""
        source = torch.frombuffer(data, dtype=self._tensors[name].dtype)
        self._part(name, start, start + source.numel()).copy_(source)

    @torch.no_grad()
    def zero(self) -> None:
        """Set everything to zero."""
        for tensor in self._tensors.values():
            tensor.zero_()

    def digest(self) -> str:
        """Names the state by its bits."""
        return digest(list(self._tensors.values()))

    def piece_sums(self, but: Collection[str] = ()) -> dict[str, Tensor]:
        """Return a sum over the bits of each piece of each tensor, which damage of any of them changes: int64 [pieces].

        but: names that the tensors have in their groups; those are left out.
        """
        return {
            name: piece_sums(of, piece_elements(name))
            for name, of in self._tensors.items()
            if name.partition(".")[2] not in but
        }

    def _part(self, name: str, start: int, stop: int) -> Tensor:
        tensor = self._tensors[name]
        if not 0 <= start <= stop <= tensor.numel():
            raise ValueError(f"elements {start} to {stop} of {tensor.numel()} in {name!r}")
        return tensor[start:stop]


def chunks(elements: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Return ranges of each tensor, (name, start, stop), small enough for memory. elements: name -> length."""
    for name, count in elements.items():
        for start in range(0, count, CHUNK_ELEMENTS):
            yield name, start, min(start + CHUNK_ELEMENTS, count)
