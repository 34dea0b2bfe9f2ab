"""Which blocks of blockwise sums are wide, decided on a device that computes beside the host.

The host does not wait for the number of blocks whose gradients are too large for 16 bits. So there is room for a fixed
number of them, the device gives it out, and the host learns later how much is taken, and makes more. Where a microbatch
needs more than there is, the sums are void, and the next try at the step reads at once.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from swarmflow.compute.blocks import BLOCK_ELEMENTS
from swarmflow.compute.device_work import AtOnce, DeviceWork
from swarmflow.compute.exact import ExponentOverflowError
from swarmflow.compute.finite import NotFiniteError

ROOM_SHARE: Final = 32  # of so many blocks one has room at first: a quarter of a byte a parameter
_ROOM_MIN: Final = 256
_NOT_FINITE, _TOO_LARGE, _NO_ROOM = range(3)


class QueuedWideSums:
    """The rows that blocks have in the wide sums of a group, and what is wrong with its gradients.

    taken: int64 [], rows that are given out. used: as many as the host knows of. reads_at_once: whether a try at the
    present step had no room, so that the next one waits for the device.
    """

    taken: Tensor
    _slots: Tensor  # int32 [blocks], the row of each block, -1: none
    _void: Tensor  # bool [], whether any gradient since the sums were zero was not added
    _faults: Tensor  # bool [3], of the present microbatch

    def __init__(self) -> None:
        self.reads_at_once = False
        self.used = 0
        self.begun = False  # whether a microbatch since the sums were zero did not read at once

    def reset(self) -> None:
        """Forget everything: the sums are zero."""
        self.begun = False

    def begin(self, slots: Tensor, used: int) -> None:
        """Begin with the rows that the host has given out, unless it was begun."""
        if self.begun:
            return
        device = slots.device
        self.begun, self.used, self._slots = True, used, slots
        self.taken = torch.full((), used, dtype=torch.int64, device=device)
        self._void = torch.zeros((), dtype=torch.bool, device=device)
        self._faults = torch.zeros(3, dtype=torch.bool, device=device)

    def is_void(self) -> bool:
        """Return whether the sums lack a gradient; the thread waits for the device."""
        return self.begun and bool(self._void)

    def reader(self, work: DeviceWork) -> DeviceWork:
        """Return what reads whether the gradients of a microbatch fit."""
        return AtOnce(work.device) if self.reads_at_once else work

    def judge(self, work: DeviceWork) -> None:
        """Have a work that does not read at once read whether the microbatch's gradients fitted.

        Raises, when it is done, NotFiniteError or ExponentOverflowError, after which the step has to be repeated.
        """
        if work.at_once or not self.begun:
            return
        faults = self._faults.clone()
        self._faults.zero_()

        def settle(found: list[Tensor]) -> None:
            faults, used = found
            self.used = max(self.used, int(used))
            not_finite, too_large, no_room = faults.tolist()
            if not_finite:
                raise NotFiniteError("gradient")
            self.reads_at_once = self.reads_at_once or no_room
            if too_large or no_room:
                raise ExponentOverflowError(finite=True)

        work.read([faults, self.taken], settle)

    def with_room(self, wide: Tensor) -> Tensor:
        """Return the wide sums, int64 [rows, 256], with as many rows again as are known to be taken."""
        rows = max(_ROOM_MIN, len(self._slots) // ROOM_SHARE, 2 * self.used)
        if rows <= len(wide):
            return wide
        grown = wide.new_zeros((rows, BLOCK_ELEMENTS))
        grown[: len(wide)] = wide
        return grown

    def choose(self, wide: Tensor, room: int) -> tuple[Tensor, Tensor]:
        """Return the numbers of the blocks that are wide (bool [n]), and then of others, and which of them are wide.

        Both are of a length that does not depend on how many there are.
        """
        order = wide.to(torch.uint8).sort(descending=True, stable=True).indices[:room]
        chosen = wide[order]
        self._blame(_NO_ROOM, wide.sum() > chosen.sum())
        return order, chosen

    def slots_for(self, blocks: Tensor, chosen: Tensor, room: int) -> Tensor:
        """Return the row of each block (int64 [n]), a new one where it has none; 0 for those that are not chosen."""
        old = self._slots[blocks].long()
        fresh = chosen & (old < 0)
        slots = torch.where(fresh, self.taken + fresh.cumsum(0) - 1, old)
        there = chosen & (slots < room)
        self._slots.index_copy_(0, blocks, torch.where(there, slots, old).int())
        self._blame(_NO_ROOM, (chosen & there.logical_not()).any())
        self.taken.add_(fresh.sum()).clamp_(max=room)
        return torch.where(there, slots, 0)

    def set_used(self, used: int) -> None:
        """Record rows that the host has given out."""
        self.used = used
        self.taken.fill_(used)

    def note(self, finite: Tensor, fits: Tensor | None = None) -> None:
        """Note (bool []) whether all gradients are finite, and, where that matters, small enough."""
        self._blame(_NOT_FINITE, finite.logical_not())
        if fits is not None:
            self._blame(_TOO_LARGE, fits.logical_not())

    def _blame(self, fault: int, found: Tensor) -> None:
        self._faults[fault].logical_or_(found)
        self._void.logical_or_(found)
