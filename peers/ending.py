"""The end of a peer's process: the effects of signals, and saving a state that no other process may have."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable

from peers.kept import Between
from peers.left import LeftState
from swarmflow.core.protocol.actions import Exit, Rejoin
from swarmflow.errors import SwarmflowError
from swarmflow.runtime.operations.ending import end_now, over

log = logging.getLogger("swarmflow")

LAST = 3


class Signals:
    """The effects of Ctrl-C and SIGTERM: the first drains, the second leaves at once, a third skips the disk.

    end: called by the fourth, which ends the process at once.
    """

    def __init__(self, end: Callable[[], object] = end_now) -> None:
        self.count = 0
        self._end = end
        self.last = asyncio.Event()  # set by the third signal
        self.handlers: tuple[Callable[[], object], ...] = ()  # of the first signals; the last one also of further ones
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.signalled)

    def signalled(self) -> None:
        """Handle a further signal."""
        self.count += 1
        if self.count > LAST:
            self._end()
        if self.count >= LAST:
            self.last.set()
        if self.handlers:
            self.handlers[min(self.count, len(self.handlers)) - 1]()


async def live(
    life: Callable[[bool], Awaitable[Exit | Rejoin]], stop: Signals, between: Between, left: LeftState, *, first: bool
) -> int:
    """Run one life after the other until the process ends, and return its exit code. Raises the error of a life.

    life: one incarnation, given whether it is the first ever. However the last one ends, the state that it has kept in
    memory for a later leader is written to the disk.
    """
    try:
        while not over(await life(first), leaving=stop.count > 0):
            first = False
        return 0
    finally:
        await outlive(stop, between, left)


async def outlive(stop: Signals, between: Between, left: LeftState) -> None:
    """Write the state that is kept in memory to the disk, unless it is there. Logs a disk that refuses."""
    stop.handlers = ()  # those of a life that is over; the first signal has done what it does, and so has the second
    kept = between.kept
    if kept is None or not left.keeps or left.held == kept.held or stop.last.is_set():
        return
    log.info(
        "writing stage %d at version %d to the state folder: nobody else may have it (%s Ctrl-C does not wait for it)",
        kept.held.stage,
        kept.held.version,
        ("a third", "two more", "one more")[min(stop.count, LAST - 1)],
    )
    writing, stopped = asyncio.create_task(asyncio.to_thread(left.write, kept)), asyncio.create_task(stop.last.wait())
    try:
        await asyncio.wait((writing, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            log.warning("stage %d at version %d is lost: not waited for", kept.held.stage, kept.held.version)
            return
        writing.result()
        log.info("left with its state in the state folder; started again, it goes on from there")
    except (SwarmflowError, OSError) as error:
        log.warning("stage %d at version %d is lost: %s", kept.held.stage, kept.held.version, error)
    finally:
        writing.cancel()
        stopped.cancel()
