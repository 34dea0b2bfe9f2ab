"""Memory for frames that arrive: the streams of a process that has enough of it wait until it has given some back."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from swarmflow.runtime.transport.door import Caller

FREE_BYTES = 1 << 16  # frames up to this size are not counted: each stream has one at most


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """Bytes of frames that are being received, or handed to the machine. A single frame may be longer."""

    of_process: int
    of_address: int
    in_all: int


@dataclass(slots=True, eq=False)
class _WaitingFrame:
    caller: Caller
    size_bytes: int
    granted: asyncio.Future[None]


class ReceiveBudget:
    """Bytes in flight by process, by address, and in all. Those who wait are served in turn."""

    def __init__(self, limits: BudgetLimits) -> None:
        self.limits = limits
        self._of_process: Counter[str] = Counter()
        self._of_address: Counter[str] = Counter()
        self._in_all = 0
        self._waiting: dict[_WaitingFrame, None] = {}

    async def take(self, caller: Caller, size_bytes: int) -> None:
        """Take the bytes of a whole frame as soon as they are within the limits; `give_back` has to follow."""
        waiting = _WaitingFrame(caller, size_bytes, asyncio.get_running_loop().create_future())
        self._waiting[waiting] = None
        self._grant()
        try:
            await waiting.granted
        except asyncio.CancelledError:
            if self._waiting.pop(waiting, self) is self:  # it was granted just now
                self._change(caller, -size_bytes)
            self._grant()  # those behind a frame that was the first in the queue
            raise

    def give_back(self, caller: Caller, size_bytes: int) -> None:
        """Return what was taken."""
        self._change(caller, -size_bytes)
        self._grant()

    def _grant(self) -> None:
        for waiting in list(self._waiting):
            caller, size, limits = waiting.caller, waiting.size_bytes, self.limits
            if waiting.granted.done():  # cancelled
                continue
            if not _fits(self._of_process[caller.name], size, limits.of_process):
                continue
            if not _fits(self._of_address[caller.address], size, limits.of_address):
                continue
            if not _fits(self._in_all, size, limits.in_all):
                break  # else short frames would pass a long one for ever
            del self._waiting[waiting]
            self._change(caller, size)
            waiting.granted.set_result(None)

    def _change(self, caller: Caller, change_bytes: int) -> None:
        self._in_all += change_bytes
        for held, key in ((self._of_process, caller.name), (self._of_address, caller.address)):
            held[key] += change_bytes
            if not held[key]:
                del held[key]


@dataclass(slots=True)
class FrameMemory:
    """What one frame takes of the budget."""

    budget: ReceiveBudget
    caller: Caller
    _taken_bytes: int = 0

    async def take(self, size_bytes: int) -> None:
        """Wait until there is room for the frame."""
        if size_bytes > FREE_BYTES:
            await self.budget.take(self.caller, size_bytes)
            self._taken_bytes = size_bytes

    def give_back(self) -> None:
        """Give back what was taken, if anything."""
        if self._taken_bytes:
            self.budget.give_back(self.caller, self._taken_bytes)
            self._taken_bytes = 0


def _fits(held_bytes: int, size_bytes: int, limit_bytes: int) -> bool:
    return not held_bytes or held_bytes + size_bytes <= limit_bytes
