"""Background answers give way to the messages of training, to whatever process these go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarmflow.runtime.transport import precedence
from swarmflow.runtime.transport.precedence import Precedence
from swarmflow.runtime.transport.upload_limit import UploadLimit
from tests.runtime.nodes import End, started

pytestmark = pytest.mark.asyncio


async def test_background_bytes_wait_for_every_lane_of_training() -> None:
    order, of = [], Precedence()
    of.begin()
    of.begin()

    async def background() -> None:
        await of.wait()
        order.append("background")

    waiting = asyncio.create_task(background())
    for end in ("one", "two"):
        await asyncio.sleep(0)
        order.append(end)
        of.end()
    await waiting
    assert order == ["one", "two", "background"]


async def test_a_stream_that_is_stuck_does_not_stop_them_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "PATIENCE_S", 0.01)
    of = Precedence()
    of.begin()
    await of.wait()


async def test_a_tensor_overtakes_background_messages_to_another_process(tmp_path: Path) -> None:
    size = 500_000
    async with started(tmp_path, 3) as nodes:
        sender, one, two = (
            End(node, number + 1, upload=UploadLimit(2_000_000.0) if not number else None)
            for number, node in enumerate(nodes)
        )
        arrived: list[str] = []
        for end in (one, two):
            end.links._on_message = lambda sender, header, bodies: arrived.append(header.decode())
            sender.links.set_addresses(end.me, end.node.addresses())
            await end.links.start()
        for number in range(4):
            sender.links.send(one.me, f"background {number}".encode(), [bytes(size)], background=True)
        while not arrived:
            await asyncio.sleep(0.01)
        for number in range(4):
            sender.links.send(two.me, f"tensor {number}".encode(), [bytes(size)], bulk=True)
        async with asyncio.timeout(60.0):
            while len(arrived) < 8:
                await asyncio.sleep(0.01)
        for end in (sender, one, two):
            await end.links.close(0.0)
    assert arrived[1:5] == [f"tensor {number}" for number in range(4)], "though they came later"
