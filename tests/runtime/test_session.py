"""One life in the network: what is awaited of a process that was given up is not awaited any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from swarmflow.core.protocol.actions import Connect, Forget
from swarmflow.core.protocol.types import Member, ProcessId
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.metrics import Metrics
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.requests import Arguments
from tests.owners import trainer_access
from tests.runtime.nodes import DEADLINE_S, started

pytestmark = pytest.mark.asyncio


async def opened(node: Node) -> Session:
    session = Session(node, trainer_access(), Metrics())
    session.open({}, lambda body: b"")
    await session.links.start()
    return session


def freeze(session: Session) -> asyncio.Event:
    """Have a session never answer to "state/read"; the event is set by the first question."""
    received = asyncio.Event()

    async def frozen(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        received.set()
        await asyncio.Event().wait()
        return []

    session.requests.serve("state/read", frozen)
    return received


async def test_who_is_given_up_is_asked_in_vain_and_at_once(tmp_path: Path) -> None:
    """A frozen process keeps its connections: without this, whoever copies a state from it waits for a minute."""
    async with started(tmp_path, 2) as nodes:
        one, two = [await opened(node) for node in nodes]
        received = freeze(two)
        one.driver.perform([Connect((Member(two.me, 0, 1, tuple(two.node.addresses())),))])
        asked = asyncio.create_task(one.requests.ask(two.me, "state/read", timeout_s=3600.0))
        await received.wait()
        one.driver.perform([Forget(two.me)])
        with pytest.raises(NetworkError, match="given up"):
            await asked
        await one.close()
        await two.close()


async def test_a_session_closes_though_an_answer_fails_at_that_moment(tmp_path: Path) -> None:
    """A peer whose trainer was killed while it was asked never came back: its question outlived its cancellation."""
    async with started(tmp_path, 2) as nodes:
        one, two = [await opened(node) for node in nodes]

        async def ask_for_ever() -> None:
            while True:
                with contextlib.suppress(NetworkError):
                    await one.requests.ask(two.me, "state/read", timeout_s=3600.0)

        received = freeze(two)
        one.driver.perform([Connect((Member(two.me, 0, 1, tuple(two.node.addresses())),))])
        one.spawn(ask_for_ever(), "a question")
        await received.wait()
        one.driver.perform([Forget(two.me)])
        async with asyncio.timeout(DEADLINE_S):
            await one.close()
        await two.close()


async def test_who_asks_what_cannot_be_answered_is_told_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path, 2) as nodes:
        one, two = [await opened(node) for node in nodes]

        async def broken(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
            raise IsADirectoryError(21, "Is a directory")

        two.requests.serve("state/read", broken)
        one.driver.perform([Connect((Member(two.me, 0, 1, tuple(two.node.addresses())),))])
        with pytest.raises(NetworkError, match="answering to 'state/read' failed"):
            await one.requests.ask(two.me, "state/read", timeout_s=3600.0)
        await one.close()
        await two.close()
    assert "IsADirectoryError" in caplog.text
