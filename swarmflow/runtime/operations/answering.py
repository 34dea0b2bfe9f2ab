"""Answers those who ask how a run is: from this machine on a loopback port, from others over the network."""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import msgspec

from swarmflow.authority.access import AccessControl
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import NetworkError, SwarmflowError
from swarmflow.runtime.operations.asking import LOOPBACK, STATUS_PROTOCOL, StatusReply
from swarmflow.runtime.transport.allowance import Allowance
from swarmflow.runtime.transport.door import Caller, Door, DoorLimits
from swarmflow.runtime.transport.node import StreamHandler
from swarmflow.view.watching import Question

log = logging.getLogger(__name__)

QUESTION_BYTES_MAX = 2048  # with a credential
QUESTION_S = 5.0
ANSWERING_MAX = 32  # requests that are answered at a time; more are refused
# Who watches asks once or twice a second, and several may watch from one address: it gets half of the answers at most.
DOOR = DoorLimits(
    unfinished_of_process=4,
    unfinished_of_address=8,
    unfinished=32,
    streams_of_process=4,
    streams_of_address=ANSWERING_MAX // 2,
    streams=2 * ANSWERING_MAX,
    process=Allowance(burst=16, per_s=4.0),
    address=Allowance(burst=64, per_s=32.0),
)
# Processes of this machine, by a port: they have no names, and only those of this user know the token.
DOOR_HERE = replace(
    DOOR,
    unfinished_of_process=2 * ANSWERING_MAX,
    unfinished_of_address=2 * ANSWERING_MAX,
    unfinished=2 * ANSWERING_MAX,
    streams_of_process=2 * ANSWERING_MAX,
    streams_of_address=2 * ANSWERING_MAX,
    process=Allowance(burst=256, per_s=64.0),
    address=Allowance(burst=256, per_s=64.0),
)

Report = Callable[[Question | None], Awaitable[bytes]]
Serve = Callable[[str, StreamHandler], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Counter:
    """Where processes of this machine ask for the status."""

    port: int = 0  # 0: they cannot ask here
    token: str = ""  # that they have to send


@asynccontextmanager
async def answering(serve: Serve, access: AccessControl, report: Report) -> AsyncIterator[Counter]:
    """Answer with the result of `report` (JSON), or with the SwarmflowError that it raises, until the block ends.

    report: called with the question of those who watch; None: the status alone is asked for.
    serve: accepts streams from the network, as `Node.serve` does.
    """
    desk, door, door_here = _Desk(report), Door(DOOR), Door(DOOR_HERE)

    async def from_afar(caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def check(command: str) -> None:
            run_id, _, credential = command.partition(":")
            if run_id != access.run_id:
                raise NetworkError("another run")
            access.admit(caller.name, base64.b64decode(credential))
            door.finish(writer)

        await _through(door, caller, writer, desk.serve(check, reader, writer))

    async def from_here(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def check(command: str) -> None:
            if not hmac.compare_digest(command.encode(), token.encode()):
                raise NetworkError("only processes that can read where it was published may ask")
            door_here.finish(writer)

        await _through(door_here, Caller(""), writer, desk.serve(check, reader, writer))

    token = secrets.token_hex(16)
    await serve(STATUS_PROTOCOL, from_afar)
    try:
        server = await asyncio.start_server(from_here, LOOPBACK, 0, limit=QUESTION_BYTES_MAX)
    except OSError as error:
        log.warning("no port for `swarmflow status` on this machine: %s", error.strerror)
        yield Counter()
        return
    try:
        yield Counter(server.sockets[0].getsockname()[1], token)
    finally:
        server.close()
        desk.closed = True


async def _through(
    door: Door, caller: Caller, writer: asyncio.StreamWriter, serving: Coroutine[None, None, None]
) -> None:
    """Serve a stream if the door admits it."""
    try:
        if door.enter(caller, writer):
            await serving
        else:
            serving.close()
            writer.transport.abort()
    finally:
        door.leave(writer)


@dataclass(slots=True)
class _Desk:
    """Takes requests, a few at a time."""

    report: Report
    closed: bool = False
    _busy: int = 0

    async def serve(
        self, check: Callable[[str], None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer one request: with the status, or with the NetworkError that the check of its command raises."""
        try:
            async with asyncio.timeout(QUESTION_S):
                line = await reader.readuntil(b"\n")
                writer.write(msgspec.json.encode(await self._reply(line, check)))
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            log.debug("a question about the status was none: %r", error)
        finally:
            writer.transport.abort()  # drops an answer that is not read, which would be kept otherwise

    async def _reply(self, line: bytes, check: Callable[[str], None]) -> StatusReply:
        try:
            command, _, question = line.strip().partition(b" ")
            check(command.decode(errors="replace"))
            if self._busy >= ANSWERING_MAX:
                raise NetworkError("busy; ask again")
            if self.closed:
                raise NetworkError("its trainer is about to leave")
            asked = msgspec.json.decode(question, type=Question) if question else None
            self._busy += 1
            try:
                return StatusReply(msgspec.Raw(await self.report(asked)))
            finally:
                self._busy -= 1
        except (*UNDECODABLE, ValueError) as error:
            return StatusReply(error=f"a question that cannot be read: {error}")
        except SwarmflowError as error:
            return StatusReply(error=str(error))
        except Exception as error:  # a mistake in a report must not end the trainer
            log.exception("the status could not be told")
            return StatusReply(error=f"the status could not be told ({type(error).__name__})")
