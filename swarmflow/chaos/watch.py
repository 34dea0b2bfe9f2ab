"""Watches a run from outside, as `swarmflow status` does, but continuously, in one session."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec

from swarmflow.chaos.schedule import TRAINER
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.operations.finding import find_leader
from swarmflow.runtime.operations.visit import visit
from swarmflow.runtime.transport.invite import Invite

EVERY_S = 0.2
_ANSWER_S = 2.0
_AGAIN_S = 0.5


@dataclass(frozen=True)
class Sight:
    """One process as the leader sees it."""

    id: str  # of its incarnation
    name: str
    stage: int  # TRAINER for a trainer
    phase: str  # of a peer `loading`, `ready`, `serving` or `draining`, of a trainer `serving` or `leading`


@dataclass(frozen=True)
class Seen:
    """The leader's view of the run at one moment."""

    at_s: float  # of the monotonic clock, when the leader was asked
    version: int
    waiting_for: str
    processes: Mapping[str, Sight]

    @classmethod
    def of(cls, status: Mapping[str, Any], at_s: float) -> Seen:
        """Make it from a status (docs/status.md)."""
        sights = [
            Sight(peer["id"], peer["name"], stage["stage"], peer["phase"])
            for stage in status["stages"]
            for peer in stage["peers"]
        ]
        sights += [
            Sight(trainer["id"], trainer["name"], TRAINER, "leading" if trainer["leads"] else "serving")
            for trainer in status["trainers"]
        ]
        waiting_for = f"{status['phase']}: {status['waiting_for']}"
        return cls(at_s, status["version"], waiting_for, {sight.name: sight for sight in sights})


class Watch:
    """Inside its `with` block a thread keeps `seen` up to date, whichever trainer leads, and unchanged without one."""

    def __init__(self, invite: str) -> None:
        self.seen: Seen | None = None
        self.failure: Exception | None = None
        self._invite = Invite.parse(invite)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._until_stopped())
        except Exception as error:  # the reason for a waiter that gets no news
            self.failure = error

    async def _until_stopped(self) -> None:
        watching = asyncio.create_task(self._watch())
        while not self._stop.is_set() and not watching.done():
            await asyncio.sleep(EVERY_S)
        watching.cancel()
        try:
            await watching
        except asyncio.CancelledError:
            return

    async def _watch(self) -> None:
        while True:
            try:
                async with visit(self._invite) as (session, found):
                    await self._ask(session, found.leader)
            except NetworkError:
                await asyncio.sleep(_AGAIN_S)  # no trainer leads at the moment

    async def _ask(self, session: Session, leader: ProcessId) -> None:
        while True:
            asked_s = time.monotonic()
            try:
                answer = await session.requests.ask(leader, "status", timeout_s=_ANSWER_S)
            except NetworkError:
                leader = (await find_leader(session, self._invite, timeout_s=None)).leader
            else:
                self.seen = Seen.of(msgspec.json.decode(answer[0]), asked_s)
                await asyncio.sleep(EVERY_S)
