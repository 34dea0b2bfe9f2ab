"""Checksums of what an update reads and writes, taken of each block while the update has it in the cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.flat_tensors import piece_sums
from swarmflow.compute.state_root import PIECE_ELEMENTS, tensor_name

Around = Callable[[FlatGroup, slice], AbstractContextManager[None]]
"""What an optimizer does around the update of each range of a group; the ranges follow one another."""


def unwatched(group: FlatGroup, where: slice) -> AbstractContextManager[None]:
    """Do nothing around the update of a range."""
    return nullcontext()


class UpdateChecksums:
    """Checksums of all pieces of the tensors that an update changes, before it and after it, by names in the state.

    A pass of its own over the state costs as much as the memory takes to read it: 7 ms for 50 million numbers where
    these sums add 2 to the update (benchmarks/README.md).
    """

    def __init__(self, groups: Collection[FlatGroup], names: tuple[str, ...]) -> None:
        """groups: those that are updated. names: of the tensors that are changed, in their group."""
        self._groups = groups
        self._names = names
        self._before = self._nothing()
        self._after = self._nothing()
        self._seen = {group.name: 0 for group in groups}  # elements, from the start on

    @contextmanager
    def around(self, group: FlatGroup, where: slice) -> Iterator[None]:
        """Take the sums of a range's pieces, before its update and after it. It begins at the edge of a piece."""
        self._add(self._before, group, where)
        self._seen[group.name] = where.stop
        yield
        self._add(self._after, group, where)

    def complete_before(self) -> None:
        """Take the sums before the update of all that it has not come to, since it has failed."""
        for group in self._groups:
            rest = slice(self._seen[group.name], group.params.numel())
            if rest.start < rest.stop:
                self._add(self._before, group, rest)

    def before(self) -> dict[str, Tensor]:
        """Return the checksums of what the update was made of: int64 [pieces] (see `piece_sums`)."""
        return {name: torch.cat(sums) for name, sums in self._before.items()}

    def after(self) -> dict[str, Tensor]:
        """Return the checksums of what the update has made."""
        return {name: torch.cat(sums) for name, sums in self._after.items()}

    def _nothing(self) -> dict[str, list[Tensor]]:
        """Return the sums of no piece, for each tensor."""
        found: dict[str, list[Tensor]] = {}
        for group in self._groups:
            none = torch.zeros(0, dtype=torch.int64, device=group.params.device)
            found |= {tensor_name(group.name, name): [none] for name in self._names}
        return found

    def _add(self, sums: dict[str, list[Tensor]], group: FlatGroup, where: slice) -> None:
        tensors = group.tensors()
        for name in self._names:
            sums[tensor_name(group.name, name)].append(piece_sums(tensors[name][where], PIECE_ELEMENTS))
