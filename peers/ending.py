"""How a peer's process ends: what signals do, and that no stage's state ends with it that nobody else may have."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable

from peers.kept import Between
from peers.left import LeftState
from swarmflow.core.actions import Exit, Rejoin
from swarmflow.errors import SwarmflowError
from swarmflow.runtime.ending import end_now, over

log = logging.getLogger("swarmflow")

LAST = 3


class Signals:
    """The first Ctrl-C or SIGTERM drains, the second leaves at once, a third does not wait for the disk either.

    handlers: what follows from each; from further ones, what followed from the last. last: set by the third. end: what
    a fourth does, which waits for nothing at all.
    """

    def __init__(self, end: Callable[[], object] = end_now) -> None:
        self.count = 0
        self._end = end
        self.last = asyncio.Event()
        self.handlers: tuple[Callable[[], object], ...] = ()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.signalled)

    def signalled(self) -> None:
        """One more came."""
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
    """Live again and again until the process ends; its exit code. Raises what ended a life.

    life: one incarnation, given whether it is the first ever. However the last one ends, what it has kept in memory for
    a leader who is still to come goes to the disk.
    """
    try:
        while not over(await life(first), leaving=stop.count > 0):
            first = False
        return 0
    finally:
        await outlive(stop, between, left)


async def outlive(stop: Signals, between: Between, left: LeftState) -> None:
    """Bring what is kept in memory to the disk, unless it lies there. Tells of a disk that refuses."""
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
