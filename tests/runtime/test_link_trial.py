"""The speed of a link as it is measured: that of a limit which is set, and no more bytes than are allowed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.operations.link_trial import BYTES_MAX, SEND, LinkTrial, measure_link
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.upload_limit import UploadLimit
from tests.owners import trainer_access
from tests.runtime.nodes import started

pytestmark = pytest.mark.asyncio


async def opened(node: Node, upload_bytes_per_s: float | None = None) -> Session:
    upload = None if upload_bytes_per_s is None else UploadLimit(upload_bytes_per_s)
    session = Session(node, trainer_access(), Metrics(), upload)
    session.open({}, lambda body: b"")
    await session.links.start()
    return session


@asynccontextmanager
async def linked(folder: Path, here: float | None = None, there: float | None = None) -> AsyncIterator[list[Session]]:
    """Two processes that serve trials; each may send so many bytes a second."""
    async with started(folder, 2) as nodes:
        sessions = [await opened(node, limit) for node, limit in zip(nodes, (here, there), strict=True)]
        sessions[0].links.set_addresses(sessions[1].me, nodes[1].addresses())
        LinkTrial(sessions[0].requests).serve()
        yield sessions
        for session in sessions:
            await session.close(0.0)


async def test_each_direction_has_the_speed_of_its_sender(tmp_path: Path) -> None:
    async with linked(tmp_path, here=1e6, there=4e6) as (peer, trainer):
        LinkTrial(trainer.requests).serve()
        link = await measure_link(peer.requests, trainer.me)
        assert link.up_bytes_per_s == pytest.approx(1e6, rel=0.4)
        assert link.down_bytes_per_s == pytest.approx(4e6, rel=0.4)
        assert link.up_bytes_per_s < 0.6 * link.down_bytes_per_s


async def test_too_many_bytes_or_trials_are_refused(tmp_path: Path) -> None:
    now = 0.0
    async with linked(tmp_path) as (peer, trainer):
        LinkTrial(trainer.requests, lambda: now).serve()
        for count in (0, -1, BYTES_MAX + 1, "many"):
            with pytest.raises(NetworkError, match="measured with 1 to 2097152 bytes"):
                await peer.requests.ask(trainer.me, SEND, {"bytes": count})
        for _ in range(8):
            assert [len(body) for body in await peer.requests.ask(trainer.me, SEND, {"bytes": 3})] == [3]
        with pytest.raises(NetworkError, match="once a minute"):
            await peer.requests.ask(trainer.me, SEND, {"bytes": 3})
        now = 11.0
        await peer.requests.ask(trainer.me, SEND, {"bytes": 3})
