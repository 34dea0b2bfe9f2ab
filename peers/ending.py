"""The end of a peer's process: the effects of signals, and saving a state that perhaps no other process has."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable

from peers.kept import BetweenLives
from peers.left import LeftState
from swarmflow.core.protocol.actions import Exit, Rejoin
from swarmflow.errors import SwarmflowError
from swarmflow.runtime.operations.ending import end_now, ends_with

log = logging.getLogger("swarmflow")

SKIPS_THE_DISK = 3  # the number of this signal


class Signals:
    """Counts Ctrl-C and SIGTERM: the first drains, the second leaves at once, the third skips the disk.

    The fourth calls `end`, which ends the process at once. What the first two do is set in `handlers`.
    """

    def __init__(self, end: Callable[[], object] = end_now) -> None:
        self.count = 0
        self._end = end
        self.skips_the_disk = asyncio.Event()  # set by the third signal
        self.handlers: tuple[Callable[[], object], ...] = ()  # one for each signal; the last also for later ones
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.on_signal)

    def on_signal(self) -> None:
        """Count a signal and do what its number means."""
        self.count += 1
        if self.count > SKIPS_THE_DISK:
            self._end()
        if self.count >= SKIPS_THE_DISK:
            self.skips_the_disk.set()
        if self.handlers:
            self.handlers[min(self.count, len(self.handlers)) - 1]()


async def run_lives(
    life: Callable[[bool], Awaitable[Exit | Rejoin]],
    signals: Signals,
    between: BetweenLives,
    left: LeftState,
    *,
    first: bool,
) -> None:
    """Run one life after the other, until one ends the process.

    life: one incarnation; it is given whether it is the first. However the last one ends, the state that is kept
    between two lives, from which a later leader may go on, is written to the state folder. Raises the error of a life.

    A life that ends with an error keeps nothing of what it served: it may be in the middle of anything, and a leader
    that has no other peer of the stage goes back at once, since it was not told of a state to wait for.
    """
    try:
        while not ends_with(await life(first), leaving=signals.count > 0):
            first = False
    finally:
        await save_kept_state(signals, between, left)


async def save_kept_state(signals: Signals, between: BetweenLives, left: LeftState) -> None:
    """Write the state that is kept in memory to the state folder, if there is a folder and it is not there already.

    A write that fails is logged. The third signal ends the waiting for it.
    """
    signals.handlers = ()  # the life is over: draining and leaving mean nothing any more
    kept = between.kept
    if kept is None or not left.keeps or left.held == kept.held or signals.skips_the_disk.is_set():
        return
    log.info(
        "writing stage %d at version %d to the state folder: perhaps nobody else has it (to skip that: %s)",
        kept.held.stage,
        kept.held.version,
        ("press Ctrl-C three times", "press Ctrl-C twice more", "press Ctrl-C once more")[signals.count],
    )
    writing = asyncio.create_task(asyncio.to_thread(left.write, kept))
    skipped = asyncio.create_task(signals.skips_the_disk.wait())
    try:
        await asyncio.wait((writing, skipped), return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():  # its thread is abandoned at the end of the loop (Threads)
            log.warning("stage %d at version %d is lost: not waited for", kept.held.stage, kept.held.version)
            return
        writing.result()
        log.info("left with its state in the state folder; started again, it goes on from there")
    except (SwarmflowError, OSError) as error:
        log.warning("stage %d at version %d is lost: %s", kept.held.stage, kept.held.version, error)
    finally:
        writing.cancel()
        skipped.cancel()
