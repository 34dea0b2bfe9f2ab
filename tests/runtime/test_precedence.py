"""Lanes that give way: they write when no lane of a lower rank has anything to write, or when their patience ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarmflow.runtime.transport import precedence
from swarmflow.runtime.transport.precedence import Precedence
from swarmflow.runtime.transport.upload_limit import UploadLimit
from tests.runtime.nodes import End, started


@pytest.mark.asyncio
async def test_a_lane_waits_until_no_lane_of_a_lower_rank_has_anything_to_write() -> None:
    order = Precedence()
    order.begin(0)
    order.begin(0)
    order.begin(1)
    waiting = asyncio.create_task(order.wait(1))
    order.end(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done(), "another lane has something to write"
    order.end(0)
    await waiting


@pytest.mark.asyncio
async def test_a_lane_waits_for_none_of_its_own_rank() -> None:
    order = Precedence()
    order.begin(0)
    await order.wait(0)
    order.end(0)
    order.begin(1)
    await order.wait(1)


@pytest.mark.asyncio
async def test_a_stuck_lane_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "PATIENCE_S", 0.01)
    order = Precedence()
    order.begin(0)
    await order.wait(1)


@pytest.mark.asyncio
async def test_background_lanes_get_the_share_that_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "LEAD_BYTES", 100)
    order = Precedence()
    order.give(0.75)
    order.begin(0)
    order.begin(2)
    await order.wait(2, 100)  # it waits for no other
    for _ in range(2):
        await order.wait(0, 100)
    waiting = asyncio.create_task(order.wait(0, 100))
    await asyncio.sleep(0)
    await order.wait(0, 100, urgent=True)
    assert not waiting.done(), "the others are ahead of their share"
    await order.wait(2, 100)
    await asyncio.sleep(0)
    assert not waiting.done(), "three bytes for each of the others"
    await order.wait(2, 200)
    await waiting


@pytest.mark.asyncio
async def test_nobody_waits_for_the_share_of_lanes_that_have_nothing_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "LEAD_BYTES", 100)
    order = Precedence()
    order.give(0.5)
    order.begin(0)
    for _ in range(3):
        await order.wait(0, 100)
    order.begin(2)
    for _ in range(2):
        await order.wait(0, 100)
    waiting = asyncio.create_task(order.wait(0, 100))
    await asyncio.sleep(0)
    assert not waiting.done()
    order.end(2)
    await waiting
    order.begin(2)
    waiting = asyncio.create_task(order.wait(2, 100))
    await asyncio.sleep(0)
    assert not waiting.done(), "it gives way again"
    order.end(0)
    await waiting


@pytest.mark.asyncio
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
