"""Somebody who asks on a port of this machine, and does not read the answer."""

from __future__ import annotations

import asyncio

import pytest


async def dropped(port: int, request: bytes) -> None:
    """Ask, and return once the other side has dropped the connection."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    writer.write(request)
    async with asyncio.timeout(10.0):
        with pytest.raises(ConnectionError):
            await _write_on(writer)


async def _write_on(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"?")
        await writer.drain()
        await asyncio.sleep(0.01)
