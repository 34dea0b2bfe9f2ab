"""The last updates of a stage, kept for peers that load it: what they have loaded already follows by these."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from swarmflow.compute.blockwise_sums import BlockwiseSums, StoredSums
from swarmflow.compute.sums import Sums, TensorSums

IDLE_S = 30.0  # after so long without a request, or a commit that says so, nobody loads any more
KEPT_BYTES = 5  # of sums that are kept, for each parameter: two steps of 16 bits with their peaks, or one of fp32
KEPT_BYTES_MIN = 16 << 20  # in all: a small stage may make several steps while one of its pieces is on the way
_CHUNK_ELEMENTS = 1 << 20  # of a gradient that is copied: so much of it is on the device at a time


@dataclass(frozen=True)
class LoggedUpdate:
    """The update that a step has made: the sums of its gradients, and what the optimizer was given with them."""

    step: int
    scale: float
    learning_rate: float
    ratios: Mapping[str, tuple[float, ...]]  # by flat group (Optimizer.follow)
    sums: Mapping[str, Sums]  # by flat group


class UpdateLog:
    """Keeps the last updates of a stage while others load it from here. One thread writes it, others read it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wanted_s: float | None = None
        self._updates: tuple[LoggedUpdate, ...] = ()  # of steps that follow one another

    def want(self) -> None:
        """Note that a peer loads the stage now."""
        self._wanted_s = self._clock()

    @property
    def wanted(self) -> bool:
        """Whether a peer loads the stage; where none does, what was kept is dropped."""
        if self._wanted_s is None or self._clock() - self._wanted_s > IDLE_S:
            self._updates = ()
            return False
        return True

    def add(self, update: LoggedUpdate | None) -> None:
        """Keep an update. None: it cannot be kept, and those before it are of no use any more."""
        if update is None or (self._updates and self._updates[-1].step != update.step - 1):
            self._updates = ()
        if update is not None:
            kept = (*self._updates, update)
            self._updates = kept[-most_updates(update.sums) :]

    def since(self, version: int, until: int) -> tuple[LoggedUpdate, ...] | None:
        """Return the updates that lead from one version to another; None: not all of them are here."""
        found = tuple(update for update in self._updates if version <= update.step < until)
        return found if len(found) == until - version else None


def most_updates(sums: Mapping[str, Sums]) -> int:
    """Return how many updates with sums like these are kept, at least one."""
    elements = sum(each.elements for each in sums.values())
    kept_bytes = max(KEPT_BYTES * elements, KEPT_BYTES_MIN)
    return max(1, kept_bytes // max(1, sum(each.nbytes for each in sums.values())))


@torch.no_grad()
def kept_sums(sums: Sums, own: bool) -> Sums | None:
    """Return sums to keep beyond the step; None: an update with these cannot be followed piece by piece.

    own: they are an accumulator that is used again. The first grid follows from all blocks together, and stored sums
    are of an earlier life. Exact sums are kept as the fp32 gradient that the optimizer gets: half the bytes. That and
    fp32 sums are kept in the memory of the host, as a device may be filled up to its limit without them; sums on a grid
    take half the room that is counted for them, for the first step.
    """
    if isinstance(sums, BlockwiseSums):
        if sums.first:
            return None
        if not own:
            return sums
        copy = sums.empty()
        copy.total(0, sums.elements, [sums])
        return copy
    if isinstance(sums, StoredSums) or not isinstance(sums, TensorSums):
        return None
    if sums.fixed is None:
        return TensorSums(sums.flat.to("cpu", copy=own))
    gradient, kept = sums.gradient(), torch.empty(sums.elements)
    for start in range(0, sums.elements, _CHUNK_ELEMENTS):
        kept[start : start + _CHUNK_ELEMENTS] = gradient[start : start + _CHUNK_ELEMENTS]
    return TensorSums(kept)
