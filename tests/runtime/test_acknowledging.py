"""What a reader of a stream acknowledges, and when."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

from swarmflow.errors import FrameError
from swarmflow.runtime.transport.acknowledging import ACKNOWLEDGEMENT, MANY_BYTES, AcknowledgingReader

DEADLINE_S = 30.0
pytestmark = pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])


@asynccontextmanager
async def stream(often: bool = True) -> AsyncIterator[tuple[AcknowledgingReader, asyncio.StreamReader, socket.socket]]:
    """A reader of a stream, the bytes that it is given, and the other end, where acknowledgements arrive."""
    here, there = socket.socketpair()
    there.setblocking(False)
    _, writer = await asyncio.open_connection(sock=here)
    source = asyncio.StreamReader()
    with closing(there), closing(AcknowledgingReader(source, writer, often=often)) as reader:
        yield reader, source, there
        writer.transport.abort()


async def acknowledged(there: socket.socket) -> int:
    """Return the bytes of the next acknowledgement."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(DEADLINE_S):
        data = await loop.sock_recv(there, ACKNOWLEDGEMENT.size)
    read_bytes: int = ACKNOWLEDGEMENT.unpack(data)[0]
    return read_bytes


async def test_the_first_bytes_are_acknowledged_at_once_and_later_ones_soon_without_another_read() -> None:
    async with stream() as (reader, source, there):
        source.feed_data(b"x" * (3 + 4 + MANY_BYTES))
        assert len(await reader.read(3)) == 3
        assert await acknowledged(there) == 3
        assert len(await reader.read(4)) == 4
        assert await acknowledged(there) == 7
        assert len(await reader.read(MANY_BYTES)) == MANY_BYTES
        assert await acknowledged(there) == 7 + MANY_BYTES


async def test_a_control_lane_is_acknowledged_when_that_is_asked_for() -> None:
    async with stream(often=False) as (reader, source, there):
        source.feed_data(b"x" * 5)
        await reader.read(2)
        await reader.read(3)
        with pytest.raises(BlockingIOError):
            there.recv(1)
        reader.acknowledge()
        assert await acknowledged(there) == 5


async def test_acknowledgements_that_nobody_reads_break_the_stream() -> None:
    async with stream() as (reader, source, _):
        with pytest.raises(FrameError, match="not read"):
            await read_and_acknowledge(reader, source, 1_000_000)


async def read_and_acknowledge(reader: AcknowledgingReader, source: asyncio.StreamReader, times: int) -> None:
    for _ in range(times):
        source.feed_data(b"x")
        await reader.read(1)
        reader.acknowledge()
