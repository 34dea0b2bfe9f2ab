"""A page server on the loop of a test, and what a browser sees of it, which a thread beside that loop looks at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarmflow.page.server import Feed, PageServer


async def browsed(feed: Feed, look: Callable[[int], None]) -> None:
    """Serve a feed while `look`, which blocks, is called with the port."""
    server = PageServer(feed)
    port = await server.start("127.0.0.1", 0)
    try:
        await asyncio.to_thread(look, port)
    finally:
        server.close()
