"""Questions and answers between processes, outside the protocol of training: each answer finds who asked."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence

from swarmflow.core.types import ProcessId
from swarmflow.errors import NetworkError, SwarmflowError
from swarmflow.runtime.links import Links
from swarmflow.runtime.wire import Request, Response, encode_header

log = logging.getLogger("swarmflow")

Arguments = dict[str, int | str]
Handler = Callable[[ProcessId, Arguments], Awaitable[Sequence[bytes | memoryview]]]

ERROR_MAX = 1000  # characters of the reason why there is no answer
ANSWERING_MAX = 32  # questions that are worked on at a time; more are told to come again


class Requests:
    """Asks other processes, and answers what they ask."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._handlers: dict[str, Handler] = {}
        self._ids = itertools.count(1)
        self._open: dict[int, tuple[ProcessId | None, asyncio.Future[list[memoryview]]]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    def serve(self, topic: str, handler: Handler) -> None:
        """Answer questions of a topic with what the handler returns; a SwarmflowError that it raises is the answer."""
        self._handlers[topic] = handler

    async def ask(
        self, to: ProcessId, topic: str, arguments: Arguments | None = None, timeout_s: float = 20.0
    ) -> list[memoryview]:
        """The bodies of the answer. Raises NetworkError when there is none in time, or the other side refuses."""
        number, future = self.expect(to)
        self._links.send(to, encode_header(Request(number, topic, arguments or {})))
        return await self.wait(number, future, f"{to} did not answer to {topic!r}", timeout_s)

    def expect(self, to: ProcessId | None = None) -> tuple[int, asyncio.Future[list[memoryview]]]:
        """Make a number under which an answer is awaited; from anybody, where `to` is None."""
        number = next(self._ids)
        future: asyncio.Future[list[memoryview]] = asyncio.get_running_loop().create_future()
        self._open[number] = (to, future)
        return number, future

    async def wait(
        self, number: int, future: asyncio.Future[list[memoryview]], failure: str, timeout_s: float
    ) -> list[memoryview]:
        """The answer to what was expected. Raises NetworkError."""
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise NetworkError(f"{failure} within {timeout_s:.0f} s") from None
        finally:
            self._open.pop(number, None)

    def asked(self, sender: ProcessId, message: Request) -> None:
        """Somebody asks."""
        if len(self._answering) >= ANSWERING_MAX:
            self._links.send(sender, encode_header(Response(message.id, "busy; ask again")))
            return
        task = asyncio.get_running_loop().create_task(self._answer(sender, message))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def answered(self, sender: ProcessId, message: Response, bodies: list[memoryview]) -> None:
        """Somebody answers."""
        asked, future = self._open.get(message.id, (None, None))
        if future is None or future.done() or (asked is not None and asked.name != sender.name):
            return
        if message.error:
            future.set_exception(NetworkError(f"{sender}: {message.error}"))
        else:
            future.set_result(bodies)

    def lost(self, process: ProcessId, reason: str) -> None:
        """Somebody is lost: who waits for its answers need not wait longer."""
        for asked, future in list(self._open.values()):
            if asked == process and not future.done():
                future.set_exception(NetworkError(f"lost {process}: {reason}"))

    async def _answer(self, sender: ProcessId, message: Request) -> None:
        handler = self._handlers.get(message.topic)
        error, bodies = "", list[bytes | memoryview]()
        try:
            if handler is None:
                raise NetworkError(f"there is nothing to ask about {message.topic[:40]!r} here")
            bodies = list(await handler(sender, message.arguments))
        except SwarmflowError as refused:
            error = str(refused)
        except Exception as failed:  # whatever it is: who asks should not wait in vain for its deadline
            log.error("answering to %r failed", message.topic[:40], exc_info=failed)
            error = f"answering to {message.topic[:40]!r} failed"
        self._links.send(sender, encode_header(Response(message.id, error[:ERROR_MAX])), bodies, bulk=bool(bodies))
