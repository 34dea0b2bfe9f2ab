"""Attacks over streams: requests, streams that say nothing, credentials of others, and orders of a revoked trainer."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from collections import deque

from swarmflow.chaos.attacks import forging
from swarmflow.chaos.attacks.outside import Outside
from swarmflow.core.protocol.messages import Message
from swarmflow.core.protocol.types import Epoch, Member, ProcessId, Roster
from swarmflow.errors import FrameError, NetworkError
from swarmflow.runtime.transport.hello import CONFIRMATION, Hello, pack_hello, read_reply
from swarmflow.runtime.transport.links import STREAM_PROTOCOL
from swarmflow.runtime.transport.wire import Request, encode_header

_DIAL_S = 5.0
_REQUESTS_AT_ONCE = 32  # to each process, ten times a second
_STREAMS_AT_ONCE = 4
_OPEN_MAX = 400
_TERM = 1000
_ASKED: tuple[tuple[str, dict[str, int | str]], ...] = (
    ("status", {}),
    ("describe", {}),
    ("tokenizer", {}),
    ("state/list", {"stage": 0, "version": 1, "root": ""}),
    ("state/piece", {"stage": 0, "group": "own", "start": 0, "stop": 16384, "have": -1}),
    ("state/leaves", {"stage": 0, "version": 1}),
)


class EndlessRequests:
    """Asks every process for everything, faster than it can answer."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._numbers = itertools.count(1)

    async def strike(self) -> None:
        """Ask some more, without waiting for answers."""
        links = self._outside.session.links
        for process in await self._outside.processes():
            for number in itertools.islice(self._numbers, _REQUESTS_AT_ONCE):
                topic, arguments = _ASKED[number % len(_ASKED)]
                links.send(process, encode_header(Request(number, topic, arguments)))
                self._outside.sent["Request"] += 1


class HalfOpenStreams:
    """Opens streams and never finishes their handshakes: some say nothing, others send a part of a hello."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._open: deque[asyncio.StreamWriter] = deque()

    async def strike(self) -> None:
        """Open some more, and keep the last ones open."""
        session = self._outside.session
        for (name, addresses), number in itertools.product(await self._outside.victims(), range(_STREAMS_AT_ONCE)):
            try:
                _, writer = await session.node.open_stream(name, STREAM_PROTOCOL, addresses, _DIAL_S)
            except (NetworkError, OSError, TimeoutError):
                continue  # one that is gone
            with contextlib.suppress(OSError):
                writer.write(b"swarmflo"[: number * 4])
            self._outside.sent["streams"] += 1
            self._open.append(writer)
        while len(self._open) > _OPEN_MAX:
            self._open.popleft().close()


class ReplayedCredential:
    """Shows the credentials of trainers, which anybody can read in the DHT, under its own name."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._credentials: list[bytes] = []
        self._incarnations = itertools.count(1)

    async def strike(self) -> None:
        """Open a stream to each process with such a credential; where it is welcome, give orders."""
        session = self._outside.session
        if not self._credentials:
            records = await session.directory.find("trainer")
            shown = [record.get("credential") for record in records.values()]
            self._credentials = [base64.b64decode(each) for each in shown if isinstance(each, str)]
        for name, addresses in await self._outside.victims():
            for credential in self._credentials:
                with contextlib.suppress(NetworkError, OSError, TimeoutError, FrameError):
                    await self._show(name, addresses, credential)

    async def _show(self, name: str, addresses: tuple[str, ...], credential: bytes) -> None:
        session = self._outside.session
        reader, writer = await session.node.open_stream(name, STREAM_PROTOCOL, addresses, _DIAL_S)
        try:
            hello = Hello(session.access.run_id, "control", next(self._incarnations), 0, credential)
            writer.write(pack_hello(hello))
            self._outside.sent["hellos"] += 1
            reply = await read_reply(reader, _DIAL_S)
            self._outside.sent["hellos refused" if reply.reason else "hellos welcome"] += 1
            if not reply.reason:
                writer.write(CONFIRMATION)
        finally:
            writer.close()


class RevokedTrainer:
    """Sends what only a trainer may send, with a certificate that was revoked."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    async def strike(self) -> None:
        """Ask every process to follow it."""
        session = self._outside.session
        me = Member(session.me, -1, 1, tuple(session.node.addresses()))
        orders: tuple[Message, ...] = (
            forging.elect(_TERM, me),
            forging.open_step(_TERM, Epoch(_TERM, 0), Roster((), (me,))),
            forging.evicted(),
            forging.finished(_TERM),
        )
        for process in await self._outside.processes():
            for order in orders:
                session.links.send(ProcessId(process.name, 0), encode_header(order))
                self._outside.sent[type(order).__name__] += 1
