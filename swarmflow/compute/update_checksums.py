"""Checksums of what an update reads and writes: taken by AdamW's kernel on its way, else of each block around it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.flat_tensors import piece_sums
from swarmflow.compute.state_root import PIECE_ELEMENTS, Span, piece_elements, tensor_name


class UpdateChecksums:
    """Checksums of all pieces of the tensors that an update changes, before it and after it, by names in the state.

    Passes of their own over the state take 1.0 s for a billion parameters, the kernel 0.16 s more with them
    (benchmarks/README.md).
    """

    def __init__(self, groups: Collection[FlatGroup], names: tuple[str, ...]) -> None:
        """groups: those that are updated. names: of the tensors that are changed, in their group."""
        self._groups = groups
        self._names = names
        self.before = self._empty()  # of what the update is made of: int64 [pieces] (see `piece_sums`)
        self.after = self._empty()  # of what it makes
        self._seen = {group.name: 0 for group in groups}  # elements, from the start on

    @contextmanager
    def around(self, group: FlatGroup, where: slice) -> Iterator[None]:
        """Take the sums of a range's pieces, before its update and after it. It begins at the edge of a piece."""
        before, after = self.of(group, where, self._names)
        self._take(group, where, before)
        yield
        self._take(group, where, after)

    def of(self, group: FlatGroup, where: slice, names: tuple[str, ...]) -> tuple[list[Tensor], list[Tensor]]:
        """Return room for the sums of a range's pieces, before and after, for who updates the range now."""
        self._seen[group.name] = where.stop
        pieces = slice(where.start // PIECE_ELEMENTS, -(-where.stop // PIECE_ELEMENTS))
        full = [tensor_name(group.name, name) for name in names]
        return [self.before[name][pieces] for name in full], [self.after[name][pieces] for name in full]

    def complete_before(self) -> None:
        """Take the sums before the update of all that it has not come to, since it has failed."""
        for group in self._groups:
            rest = slice(self._seen[group.name], group.params.numel())
            if rest.start < rest.stop:
                self._take(group, rest, self.of(group, rest, self._names)[0])

    def _empty(self) -> dict[str, Tensor]:
        """Return room for the sums of all pieces.

        All of it at once: small tensors that stayed between the temporaries of an update had the heap give memory back
        to the system and ask for it again, which took two to seven times as long as the update.
        """
        found: dict[str, Tensor] = {}
        for group in self._groups:
            pieces = -(-group.params.numel() // PIECE_ELEMENTS)
            for name in self._names:
                found[tensor_name(group.name, name)] = torch.empty(
                    pieces, dtype=torch.int64, device=group.params.device
                )
        return found

    def _take(self, group: FlatGroup, where: slice, sums: list[Tensor]) -> None:
        tensors = group.tensors()
        span = Span(group.name, where.start, where.stop)
        for name, out in zip(self._names, sums, strict=True):
            piece_sums(tensors[name][span.of(name)], piece_elements(name), out)


def summed(sums: UpdateChecksums | None, group: FlatGroup, where: slice) -> AbstractContextManager[None]:
    """Return what takes the sums around the update of a range, if they are wanted."""
    return nullcontext() if sums is None else sums.around(group, where)
