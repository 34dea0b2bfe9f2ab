"""Watches a run: asks whichever trainer leads again and again, and keeps what it answers for those who look."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from swarmflow.clean_text import clean
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import NetworkError, SwarmflowError
from swarmflow.runtime.operations.asking import ASK_S, ask_here, ask_trainers, launch_asker
from swarmflow.runtime.transport.daemon import Daemon
from swarmflow.runtime.transport.invite import Invite, local_trainers
from swarmflow.view.watching import Mirror, Question

FRESH_S = 0.4  # a look within this time after the last answer gets that one, however many look
ERROR_CHARS_MAX = 500
ANSWERS_MAX = 16  # kept; whoever asks for something else has it made anew

Ask = Callable[[Question], Awaitable[bytes]]


class LiveFeed:
    """The state and the timeline of a run for any number of viewers, asked for only while somebody looks."""

    def __init__(self, ask: Ask) -> None:
        """ask: puts a question to whichever trainer leads; raises SwarmflowError where none answers."""
        self.mirror = Mirror()
        self.error: str | None = None  # why there is no newer answer
        self._name = secrets.token_hex(8)  # whoever has looked at another feed has numbers of that one
        self._ask = ask
        self._asked_s = float("-inf")
        self._lock = asyncio.Lock()
        self._answers: dict[tuple[str, int], bytes] = {}  # since the run was asked last

    async def refresh(self) -> None:
        """Ask the run, unless it was asked a moment ago. `error` has the reason where there is no answer."""
        async with self._lock:
            if time.monotonic() - self._asked_s < FRESH_S:
                return
            self._answers.clear()
            try:
                self.mirror.take(_object(await self._ask(self.mirror.question)))
                self.error = None
            except (SwarmflowError, ValueError, OverflowError, RecursionError) as error:  # the answer is a stranger's
                self.error = clean(str(error)[:ERROR_CHARS_MAX])
            self._asked_s = time.monotonic()

    async def run(self, after: int) -> bytes:
        """Return the name of the feed, the view, the later events, and why there is no newer view, as JSON."""
        await self.refresh()
        return self._encoded("run", after, lambda: self._run(after))

    async def steps(self, after: int) -> bytes:
        """Return the steps after this one, as JSON."""
        await self.refresh()
        return self._encoded("steps", after, lambda: {"steps": self.mirror.own.steps_after(after)})

    def _run(self, after: int) -> dict[str, Any]:
        events = self.mirror.own.events_after(after)
        return {"mode": "live", "feed": self._name, "view": self.mirror.view, "events": events, "error": self.error}

    def _encoded(self, what: str, after: int, make: Callable[[], dict[str, Any]]) -> bytes:
        """Return an answer as JSON, made once: nearly all viewers have seen the same, and ask for what is new since."""
        known = self._answers.get((what, after))
        if known is None:
            known = msgspec.json.encode(make())
            if len(self._answers) < ANSWERS_MAX:
                self._answers[what, after] = known
        return known

    async def recording(self) -> None:
        """Return None: the run is live."""


def asking_this_machine(run_id: str) -> Ask:
    """Ask only the trainers of this machine. The function raises NetworkError where none answers."""

    async def ask(question: Question) -> bytes:
        reasons: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                if (answer := await _ask_this_machine(run_id, question, reasons)) is not None:
                    return answer
        raise NetworkError("; ".join(reasons) or "no trainer of this machine has answered")

    return ask


async def _ask_this_machine(run_id: str, question: Question, reasons: list[str]) -> bytes | None:
    """Return the answer of a trainer of this machine; None: none has answered, for these reasons."""
    for port, token in local_trainers(run_id):
        try:
            return await ask_here(port, token, question)
        except NetworkError as error:
            reasons.append(str(error))
    return None


@asynccontextmanager
async def asking(invite: Invite) -> AsyncIterator[Ask]:
    """Ask the run of an invite: a trainer of this machine, else the others over one connection that lasts.

    The function raises NetworkError where no trainer answers.
    """
    asker = _Asker(invite)
    try:
        yield asker.ask
    finally:
        await asker.close()


class _Asker:
    """Keeps a p2pd for the questions that no trainer of this machine answers."""

    def __init__(self, invite: Invite) -> None:
        self._invite = invite
        self._daemon: Daemon | None = None

    async def ask(self, question: Question) -> bytes:
        reasons: list[str] = []
        try:
            async with asyncio.timeout(ASK_S):
                answer = await _ask_this_machine(self._invite.run_id, question, reasons)
                if answer is None:
                    if self._daemon is None:
                        self._daemon = await launch_asker()
                    answer = await ask_trainers(self._daemon, self._invite, question, reasons)
        except TimeoutError:
            reasons.insert(0, f"nobody has answered within {ASK_S:g} s")
            answer = None
        if answer is None:
            await self.close()  # it may be the daemon that does not answer: the next question has a new one
            raise NetworkError("; ".join(dict.fromkeys(reasons)) or "no trainer of the run is known")
        return answer

    async def close(self) -> None:
        if self._daemon is not None:
            daemon, self._daemon = self._daemon, None
            with suppress(NetworkError):
                await daemon.stop()


def _object(data: bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(data)
    except UNDECODABLE as error:
        raise ValueError(f"the answer of the swarm is no JSON: {error}") from None
    if not isinstance(answer, dict):
        raise ValueError("the answer of the swarm is no object")
    return answer
