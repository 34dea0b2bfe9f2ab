"""`swarmflow status --watch`: shows a run again and again, until Ctrl-C or until the run has ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

from swarmflow.errors import NetworkError
from swarmflow.runtime.operations.left_runs import last_left, left_run
from swarmflow.runtime.operations.watching import LiveFeed, asking
from swarmflow.runtime.transport.invite import Invite, read_invite
from swarmflow.terminal.changes import Changes
from swarmflow.terminal.screen import LiveScreen
from swarmflow.terminal.shown_run import loss_of, shown_event, shown_run
from swarmflow.terminal.swarm_view import SwarmView

LOOK_S = 1.0
COST_FACTOR = 5  # a run of thousands of peers is looked at less often, so that it costs a fifth of a core at most
CURVE_STEPS = 2000  # of which the curve of the loss is drawn
EVENTS_SHOWN = 32


def main(text: str | None) -> int:
    """Show the run of this invite, or the one of this machine, until Ctrl-C; the exit code, 0.

    Raises NetworkError where the text is no invite.
    """
    if text:
        read_invite(text)
    with contextlib.suppress(KeyboardInterrupt):  # before the loop handles the signal
        asyncio.run(_watch(text))
    return 0


async def _watch(text: str | None) -> None:
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    shown: _Terminal | _Lines = _Terminal() if terminal else _Lines()
    try:
        while not over.is_set() and (invite := await _invite(text, shown, over)) is not None:
            async with asking(invite) as ask:
                if await _follow(invite, LiveFeed(ask), shown, over):
                    return
    finally:
        shown.end()


async def _invite(text: str | None, shown: _Terminal | _Lines, over: asyncio.Event) -> Invite | None:
    """Return the run to watch, as soon as there is one; None: the user has ended the watch."""
    while not over.is_set():
        try:
            return read_invite(text)
        except NetworkError as error:
            ended = last_left()
            shown.show(None, str(error) if ended is None else f"{error}; the last one here: {ended}")
        await _pause(over)
    return None


async def _follow(invite: Invite, feed: LiveFeed, shown: _Terminal | _Lines, over: asyncio.Event) -> bool:
    """Show a run until the user ends it, or until it has ended by itself; return whether the watch is over."""
    while not over.is_set():
        began_s = time.process_time()
        await feed.refresh()
        if feed.error is not None and (left := left_run(invite.run_id)) is not None:
            shown.show(feed, str(left))
            if left.finished:
                return True
        else:
            shown.show(feed, feed.error or "")
        await _pause(over, max(LOOK_S, COST_FACTOR * (time.process_time() - began_s)))
    return True


async def _pause(over: asyncio.Event, pause_s: float = LOOK_S) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await over.wait()


class _Terminal:
    """The whole screen of a terminal; what it showed last stays when the watch ends."""

    def __init__(self) -> None:
        self._view = SwarmView()
        self._screen = LiveScreen(self._view.draw, sys.stdout, whole=True, every_s=LOOK_S)
        self._screen.start()

    def show(self, feed: LiveFeed | None, trouble: str) -> None:
        """Show what a feed has. trouble: why that is not new."""
        view = self._view
        view.trouble = trouble
        if feed is None or feed.mirror.view is None:
            return
        timeline = feed.mirror.own
        try:
            view.run = shown_run(feed.mirror.view)
        except ValueError as error:
            view.trouble = f"the answer of the swarm cannot be read ({error})"
            return
        if not trouble:
            view.shown_s = time.time()
        view.losses = [loss_of(line) for line in timeline.steps[-CURVE_STEPS:]]
        view.events = [shown_event(event) for event in list(timeline.events)[-EVENTS_SHOWN:]]

    def end(self) -> None:
        """Restore the screen, and leave the last picture on it."""
        self._screen.stop()
        self._view.hint = ""
        self._screen.print_last()


class _Lines:
    """A line for each change, with the time."""

    def __init__(self) -> None:
        self._changes = Changes()

    def show(self, feed: LiveFeed | None, trouble: str) -> None:
        """Print what has changed."""
        run, events = None, []
        if feed is not None and feed.mirror.view is not None:
            try:
                run = shown_run(feed.mirror.view)
            except ValueError as error:
                trouble = f"the answer of the swarm cannot be read ({error})"
            events = [shown_event(event) for event in feed.mirror.own.events]
        for text in self._changes.lines(run, events, trouble, time.time()):
            print(text, flush=True)

    def end(self) -> None:
        """Nothing remains to be done."""
