"""Real nodes on loopback, and a recorder in the place of the protocol, for the tests of the network."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from swarmflow.authority.access import AccessControl
from swarmflow.core.protocol.types import ProcessId, Role
from swarmflow.runtime.transport.door import Caller
from swarmflow.runtime.transport.frames import FrameLimits
from swarmflow.runtime.transport.hello import (
    CONFIRMATION,
    Hello,
    HelloReply,
    LaneName,
    pack_hello,
    pack_reply,
    read_hello,
    read_reply,
)
from swarmflow.runtime.transport.lanes import LaneSettings
from swarmflow.runtime.transport.links import STREAM_PROTOCOL, Links, OnMessage
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.upload_limit import UploadLimit
from tests.owners import RUN_ID, trainer_access

DEADLINE_S = 30.0


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds, DEADLINE_S at most."""
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def started(folder: Path, count: int) -> AsyncIterator[list[Node]]:
    """Nodes of one network; the first is the bootstrap of the others."""
    nodes: list[Node] = []
    try:
        for index in range(count):
            known = nodes[0].addresses() if nodes else ()
            nodes.append(await Node.start(identity_path=folder / f"{index}.id", bootstrap=known))
        yield nodes
    finally:
        for node in reversed(nodes):
            await node.stop()


Arrived = tuple[ProcessId, bytes, list[memoryview], Role | None]


class End:
    """One process's links, with everything that they report, in order of arrival."""

    def __init__(
        self,
        node: Node,
        incarnation: int,
        *,
        access: AccessControl | None = None,
        limits: FrameLimits | None = None,
        settings: LaneSettings | None = None,
        on_message: OnMessage | None = None,
        upload: UploadLimit | None = None,
    ) -> None:
        self.node = node
        self.me = ProcessId(node.name, incarnation)
        self.messages: asyncio.Queue[Arrived] = asyncio.Queue()
        self.losses: asyncio.Queue[tuple[ProcessId, str]] = asyncio.Queue()
        self.counts: Counter[str] = Counter()
        self.refusals: asyncio.Queue[str] = asyncio.Queue()
        self.links = Links(
            node,
            self.me,
            access or trainer_access(),
            on_message=on_message or (lambda *message: self.messages.put_nowait(message)),
            on_lost=lambda *loss: self.losses.put_nowait(loss),
            counters=self,
            limits=limits,
            settings=settings,
            upload=upload,
        )

    def sent(self, lane: str, header: bytes, size_bytes: int) -> None:
        self.counts[f"sent {lane}"] += size_bytes

    def received(self, lane: str, header: bytes, size_bytes: int) -> None:
        self.counts[f"received {lane}"] += size_bytes

    def refused(self, kind: str) -> None:
        self.refusals.put_nowait(kind)

    def queued(self, lane: str, change_bytes: int) -> None:
        self.counts[f"queued {lane}"] += change_bytes

    async def headers(self, count: int) -> list[bytes]:
        """The headers of the next `count` messages."""
        return [(await self.messages.get())[1] for _ in range(count)]


@asynccontextmanager
async def linked(
    folder: Path, *, limits: FrameLimits | None = None, settings: LaneSettings | None = None
) -> AsyncIterator[tuple[End, End]]:
    """Two processes that know each other's address."""
    async with started(folder, 2) as (first, second):
        one = End(first, 1, limits=limits, settings=settings)
        two = End(second, 2, limits=limits, settings=settings)
        for end, other in ((one, two), (two, one)):
            end.links.set_addresses(other.me, other.node.addresses())
            await end.links.start()
        try:
            yield one, two
        finally:
            await one.links.close(0.0)
            await two.links.close(0.0)


def damage_next(sender: Node, monkeypatch: pytest.MonkeyPatch, least_bytes: int) -> None:
    """Flip a bit of the next piece of at least so many bytes that the node writes to a stream that it opens from now.

    It flips between the process and its daemon, where no encryption protects it.
    """
    left, opens = [1], sender.open_stream

    async def open_stream(*to: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:  # noqa: ANN401
        reader, writer = await opens(*to)
        writes = writer.write

        def write(data: bytes | bytearray | memoryview) -> None:
            damaged = bytearray(data)
            if len(damaged) >= least_bytes and left:
                damaged[len(damaged) // 2] ^= 1 << left.pop()
            writes(damaged)

        monkeypatch.setattr(writer, "write", write)
        return reader, writer

    monkeypatch.setattr(sender, "open_stream", open_stream)


@asynccontextmanager
async def deaf(node: Node, *, welcomes: bool = True) -> AsyncIterator[ProcessId]:
    """A process that takes streams, and reads nothing of them. welcomes: it answers to their first message."""
    ended, process = asyncio.Event(), ProcessId(node.name, 2)

    async def accept(caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if welcomes:
            await read_hello(reader, 5.0)
            writer.write(pack_reply(HelloReply(process.incarnation)))
        await ended.wait()
        writer.close()

    await node.serve(STREAM_PROTOCOL, accept)
    yield process
    ended.set()


async def hostile_stream(
    sender: Node, receiver: Node, *, lane: LaneName = "control", incarnation: int = 1
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream that was welcomed, on which a test writes whatever it likes."""
    reader, writer = await sender.open_stream(receiver.name, STREAM_PROTOCOL, receiver.addresses(), 5.0)
    writer.write(pack_hello(Hello(RUN_ID, lane, incarnation, 0, trainer_access().credential(sender.name))))
    reply = await read_reply(reader, 5.0)
    assert not reply.reason
    writer.write(CONFIRMATION)
    return reader, writer
