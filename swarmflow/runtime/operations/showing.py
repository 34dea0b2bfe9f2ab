"""Keeps what a process shows of its run up to date: on its live view, or in its log while the run stands still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from swarmflow.activity import Waiting
from swarmflow.clean_text import clean
from swarmflow.errors import NetworkError
from swarmflow.runtime.operations.watching import LiveFeed
from swarmflow.terminal.shown_run import ShownRun, loss_of, shown_event, shown_run
from swarmflow.view.watching import BRIEF_EVENTS, BRIEF_STEPS, Question

if TYPE_CHECKING:
    from swarmflow.runtime.operations.answering import Report
    from swarmflow.terminal.process_view import ProcessView

LIVE_S = 1.0  # between two looks of a live view
PLAIN_S = 3.0  # and of a log, which tells only what the run waits for
COST_SHARE = 0.01  # of the time of the event loop, at most
PEERS_PER_S = 100.0  # questions that a leader answers each second, if every peer of its run has a live view


async def begins(question: Question | None) -> bytes:
    """Ask nobody. Raises NetworkError: no incarnation of this process takes part in the run at the moment."""
    raise NetworkError("this process takes no part in it at the moment")


class RunDisplay:
    """Asks the leader for the brief view, again and again, through whichever incarnation of this process lives."""

    def __init__(self, view: ProcessView | None) -> None:
        """view: on a terminal; None: the log tells what the run waits for, if this process does not lead."""
        self.view = view
        self.name = ""  # libp2p name of this process
        self.ask: Report = begins  # of the present incarnation
        self.idle: Callable[[], bool] = lambda: True  # whether this process has done nothing for a while
        self.own: Callable[[], Sequence[str]] = tuple  # lines about this process
        self._feed = LiveFeed(self._ask)
        self._standing = Waiting()

    async def keep_up(self) -> None:
        """Keep the view or the log up to date, until the task is cancelled."""
        while True:
            began_s = time.process_time()
            if self.view is not None:
                pause_s = await self._look(self.view)
            else:
                pause_s = await self._tell()
            await asyncio.sleep(max(pause_s, (time.process_time() - began_s) / COST_SHARE))

    async def _look(self, view: ProcessView) -> float:
        """Bring the live view up to date; return when to do so again, in seconds."""
        view.own = [text for text in self.own() if text]
        state = await self._state()
        view.trouble = self._feed.error or ""
        if state is None:
            return LIVE_S
        timeline = self._feed.mirror.own
        view.losses = [loss_of(line) for line in timeline.steps[-BRIEF_STEPS:]]
        recent = list(timeline.events)[-BRIEF_EVENTS:]
        view.events = () if self._leads(state) else [shown_event(event) for event in recent]  # its log has its own
        view.run = state
        if not view.trouble:
            view.fresh_s = time.monotonic()
        return max(LIVE_S, state.peers / PEERS_PER_S)

    async def _tell(self) -> float:
        """Let the log tell what the run waits for; return when to look again, in seconds."""
        reason, state = "", None
        if self.idle():
            state = await self._state()
            if state is not None and self._feed.error is None and not self._leads(state) and state.phase != "running":
                reason = state.waiting_for
        self._standing.set(f"the run waits for {reason}" if reason else "")
        return PLAIN_S if state is None else max(PLAIN_S, state.peers / PEERS_PER_S)

    async def _state(self) -> ShownRun | None:
        """Return the state of the run as it was last answered."""
        await self._feed.refresh()
        if self._feed.mirror.view is None:
            return None
        try:
            return shown_run(self._feed.mirror.view)
        except ValueError as error:
            self._feed.error = f"the answer of the swarm cannot be read ({clean(str(error))})"
            return None

    def _leads(self, state: ShownRun) -> bool:
        return any(trainer.leads and trainer.name == self.name for trainer in state.trainers)

    async def _ask(self, question: Question) -> bytes:
        return await self.ask(replace(question, brief=1))
