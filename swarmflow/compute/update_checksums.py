"""Checksums of what an update reads and writes, taken of each block while the update has it in the cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.flat_tensors import as_checksum, sum_of_bits
from swarmflow.compute.state_root import tensor_name

Around = Callable[[FlatGroup, slice], AbstractContextManager[None]]
"""What an optimizer does around the update of each range of a group; the ranges follow one another."""


def unwatched(group: FlatGroup, where: slice) -> AbstractContextManager[None]:
    """Do nothing around the update of a range."""
    return nullcontext()


class UpdateChecksums:
    """The checksums of the tensors that one update changes, before it and after it, by their names in the state.

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
        """Add the bits of a range to the sums, before its update and after it. It starts at an even element."""
        self._add(self._before, group, where)
        self._seen[group.name] = where.stop
        yield
        self._add(self._after, group, where)

    def complete_before(self) -> None:
        """Add all that the update has not come to, since it has failed, to the sums before it."""
        for group in self._groups:
            rest = slice(self._seen[group.name], group.params.numel())
            self._add(self._before, group, rest)
            self._seen[group.name] = rest.stop

    def before(self) -> dict[str, int]:
        """Return the checksums of what the update was made of."""
        return {name: as_checksum(torch.stack(sums).sum()) for name, sums in self._before.items()}

    def after(self) -> dict[str, int]:
        """Return the checksums of what the update has made."""
        return {name: as_checksum(torch.stack(sums).sum()) for name, sums in self._after.items()}

    def _nothing(self) -> dict[str, list[Tensor]]:
        """Return the sum over no range, for each tensor."""
        found: dict[str, list[Tensor]] = {}
        for group in self._groups:
            zero = torch.zeros((), dtype=torch.int64, device=group.params.device)
            found |= {tensor_name(group.name, name): [zero] for name in self._names}
        return found

    def _add(self, sums: dict[str, list[Tensor]], group: FlatGroup, where: slice) -> None:
        tensors = group.tensors()
        for name in self._names:
            sums[tensor_name(group.name, name)].append(sum_of_bits(tensors[name][where]))
