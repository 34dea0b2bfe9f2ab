"""Serves a pretended run: a feed of it, and the page's server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from swarmflow.page.server import Feed, PageServer
from tests.page.fake_run import FakeRun


class FakeFeed:
    """The feed of a pretended run. pace: its seconds in one of the clock's; 0: it stands still unless moved on."""

    def __init__(self, run: FakeRun, pace: float = 0.0) -> None:
        self.fake, self.pace = run, pace
        self.error: str | None = None
        self._seen_s: float | None = None

    def _keep_pace(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self.pace and self._seen_s is not None:
            self.fake.advance(min(5.0, (now_s - self._seen_s) * self.pace))
        self._seen_s = now_s

    async def run(self, after: int) -> bytes:
        """Return the view, and the events with later numbers."""
        self._keep_pace()
        view, events = self.fake.view(), [event for event in self.fake.events if event["seq"] > after]
        answer = {"mode": "live", "view": view, "events": events, "error": self.error}
        return json.dumps(answer, separators=(",", ":")).encode()

    async def steps(self, after: int) -> bytes:
        """Return the steps with later numbers."""
        return json.dumps({"steps": [line for line in self.fake.lines if line["seq"] > after]}).encode()

    async def recording(self) -> None:
        """Return None: the run is live."""


@asynccontextmanager
async def served(feed: Feed) -> AsyncIterator[str]:
    """Serve a feed on the running loop; the address of its page."""
    server = PageServer(feed)
    port = await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.close()
