"""Requests and responses between processes, outside the protocol of training."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from swarmflow.core.protocol.types import ProcessId, Role
from swarmflow.errors import NetworkError, SwarmflowError
from swarmflow.runtime.transport.answer_queue import AnswerQueue
from swarmflow.runtime.transport.door import Caller
from swarmflow.runtime.transport.hello import LaneName
from swarmflow.runtime.transport.links import Links
from swarmflow.runtime.transport.wire import Request, Response, encode_header

log = logging.getLogger("swarmflow")

Arguments = dict[str, int | str]
Handler = Callable[[ProcessId, Arguments], Awaitable[Sequence[bytes | memoryview]]]

ERROR_MAX = 1000  # characters of the reason for a refusal
BUSY = "busy; ask again"


class BusyError(NetworkError):
    """A process has as many requests of this one as it answers at a time."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A request whose answer is awaited."""

    asked: tuple[ProcessId, ...]  # any of these may answer
    future: asyncio.Future[list[memoryview]]
    of_trainer: bool


class Requests:
    """Sends requests to other processes, and answers theirs."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._handlers: dict[str, Handler] = {}
        self._lanes: dict[str, LaneName] = {}  # of the bodies of the answers, by topic
        self._for_trainers: set[str] = set()  # topics
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}  # by request number
        self._queue = AnswerQueue()
        self._answering: set[asyncio.Task[None]] = set()

    def serve(self, topic: str, handler: Handler, lane: LaneName = "bulk", *, for_trainers: bool = False) -> None:
        """Answer requests of a topic with the result of the handler, or with the SwarmflowError that it raises.

        lane: of answers with bodies. for_trainers: only who has the certificate of one is answered.
        """
        self._handlers[topic], self._lanes[topic] = handler, lane
        if for_trainers:
            self._for_trainers.add(topic)

    async def ask(
        self,
        to: ProcessId,
        topic: str,
        arguments: Arguments | None = None,
        timeout_s: float = 20.0,
        *,
        of_trainer: bool = False,
    ) -> list[memoryview]:
        """Return the bodies of the answer. Raises NetworkError when there is none in time, or a refusal.

        of_trainer: an answer without the certificate of a trainer is a refusal.
        """
        number, future = self.expect(to, of_trainer=of_trainer)
        self._links.send(to, encode_header(Request(number, topic, arguments or {})))
        return await self.wait(number, future, f"{to} did not answer to {topic!r}", timeout_s)

    def expect(self, *of: ProcessId, of_trainer: bool = False) -> tuple[int, asyncio.Future[list[memoryview]]]:
        """Return a new request number, and the future of its answer, which may come from any of these processes."""
        number = next(self._ids)
        future: asyncio.Future[list[memoryview]] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Pending(of, future, of_trainer)
        return number, future

    async def wait(
        self, number: int, future: asyncio.Future[list[memoryview]], failure: str, timeout_s: float
    ) -> list[memoryview]:
        """Wait for an expected answer. Raises NetworkError."""
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise NetworkError(f"{failure} within {timeout_s:.0f} s") from None
        finally:
            self._pending.pop(number, None)

    def on_request(self, sender: ProcessId, message: Request, role: Role | None) -> None:
        """Answer a request that has arrived, in a task of its own, when its turn has come."""
        if message.topic in self._for_trainers and role != "trainer":
            refusal = f"{message.topic!r} is for trainers: ask the run's owner for an invite for one"
            self._links.send(sender, encode_header(Response(message.id, refusal)))
            return
        asker = self._links.caller(sender)

        def start() -> None:
            task = asyncio.get_running_loop().create_task(self._answer(sender, asker, message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

        if not self._queue.add(sender, asker, start):
            self._links.send(sender, encode_header(Response(message.id, BUSY)))

    def on_response(self, sender: ProcessId, message: Response, bodies: list[memoryview], role: Role | None) -> None:
        """Complete the request that a response belongs to; ignore one that was not asked for."""
        pending = self._pending.get(message.id)
        if pending is None or pending.future.done():
            return
        if sender.name not in [process.name for process in pending.asked]:
            return
        if message.error:
            kind = BusyError if message.error == BUSY else NetworkError
            pending.future.set_exception(kind(f"{sender}: {message.error}"))
        elif pending.of_trainer and role != "trainer":
            pending.future.set_exception(NetworkError(f"{sender} answers without the certificate of a trainer"))
        else:
            pending.future.set_result(bodies)

    def on_process_lost(self, process: ProcessId, reason: str) -> None:
        """Fail the requests to a process that is lost, and forget those of it that wait."""
        self._queue.drop(process)
        for pending in list(self._pending.values()):
            if process in pending.asked and not pending.future.done():
                pending.future.set_exception(NetworkError(f"lost {process}: {reason}"))

    async def _answer(self, sender: ProcessId, asker: Caller, message: Request) -> None:
        handler = self._handlers.get(message.topic)
        error, bodies = "", list[bytes | memoryview]()
        try:
            if handler is None:
                raise NetworkError(f"there is nothing to ask about {message.topic[:40]!r} here")
            bodies = list(await handler(sender, message.arguments))
        except SwarmflowError as refused:
            error = str(refused)
        except Exception as failed:  # of any kind: the requester should not have to wait for its timeout
            log.error("answering to %r failed", message.topic[:40], exc_info=failed)
            error = f"answering to {message.topic[:40]!r} failed"
        finally:
            self._queue.made(asker)
        header, lane = encode_header(Response(message.id, error[:ERROR_MAX])), self._lanes.get(message.topic, "bulk")
        written = partial(self._queue.written, asker)
        self._links.send(sender, header, bodies, lane=lane if bodies else "control", done=written)
