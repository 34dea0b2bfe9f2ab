"""Serves the page of a run until Ctrl-C: of a live one, of a recording, or of the log of a finished one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from swarmflow.page.recording import Recording
from swarmflow.page.server import Feed
from swarmflow.page.serving import serve_until_stopped
from swarmflow.runtime.operations.watching import LiveFeed, asking
from swarmflow.runtime.transport.invite import read_invite


def main(
    invite: str | None, json_file: Path | None, recording: Path | None, host: str, port: int, allowed: Sequence[str]
) -> int:
    """Serve the page until Ctrl-C or SIGTERM; the exit code. Raises NetworkError and DataError."""
    feed: Feed | None = None
    if json_file is not None:
        feed = Recording.of_steps(json_file)
    elif recording is not None:
        feed = Recording.of_file(recording)
    asyncio.run(_serve(feed, invite, host, port, allowed))
    return 0


async def _serve(feed: Feed | None, invite: str | None, host: str, port: int, allowed: Sequence[str]) -> None:
    """Serve a feed; None: that of the run of the invite, or of the one run of this machine."""
    async with AsyncExitStack() as stack:
        if feed is None:
            feed = LiveFeed(await stack.enter_async_context(asking(read_invite(invite))))
        await serve_until_stopped(feed, host, port, allowed)
