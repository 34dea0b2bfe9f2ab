"""Serves a page until its user ends it with Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence

from swarmflow.errors import NetworkError
from swarmflow.page.server import Feed, PageServer


async def serve_until_stopped(feed: Feed, host: str, port: int, allowed_hosts: Sequence[str] = ()) -> None:
    """Serve a feed until Ctrl-C or SIGTERM, and print the address. Raises NetworkError where it cannot be used."""
    server = PageServer(feed, allowed_hosts)
    bound = await server.start(host, port)
    try:
        over = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, over.set)
        print(f"page: {url_of(host, bound)} (Ctrl-C ends it)", flush=True)
        await over.wait()
    finally:
        server.close()


def url_of(host: str, port: int) -> str:
    """Return the address of a page."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def check_port(host: str, port: int) -> None:
    """Raise NetworkError for a port that is taken, before work whose result is to be served there."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        reason = f"cannot serve the page on {host}:{port}: {error.strerror}"
        raise NetworkError(f"{reason}; choose another port (0: any free one)") from None
