"""The ends of a process: after one of its lives, and at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from swarmflow.core.protocol.actions import Exit, Rejoin
from swarmflow.errors import SwarmflowError

log = logging.getLogger("swarmflow")


class Threads(ThreadPoolExecutor):
    """The thread pool of `asyncio.to_thread`: the end of the loop waits for it, unless it is abandoned before."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self._abandoned = self._ending = False

    @classmethod
    def of_this_loop(cls) -> Threads:
        """Make a pool, and let the running loop use it from now on."""
        threads = cls()
        asyncio.get_running_loop().set_default_executor(threads)
        return threads

    def abandon(self) -> None:
        """Do not wait for running calls: they end with the process (cli.run does not join threads)."""
        self._abandoned = True
        if self._ending:
            end_now()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for running calls, unless they are abandoned."""
        self._ending = True
        super().shutdown(wait and not self._abandoned, cancel_futures=cancel_futures or self._abandoned)


def ends_with(outcome: Exit | Rejoin, *, leaving: bool) -> bool:
    """Log and return whether the process ends with this life, or joins again. Raises SwarmflowError for an error.

    leaving: the user has asked it to end.
    """
    if isinstance(outcome, Exit):
        log.info("%s", outcome.reason)
        if not outcome.ok:
            raise SwarmflowError(outcome.reason)
        return True
    if leaving:
        log.info("left: %s", outcome.reason)
        return True
    log.warning("joining again: %s", outcome.reason)
    return False


def end_now(code: int = 0) -> NoReturn:
    """End this process at once, whatever it does."""
    with contextlib.suppress(OSError):  # the reader of the output is gone
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
