"""Lanes that give way: they write when no lane of a lower rank has anything to write, or when their patience ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from swarmflow.core.routing.background_share import COPIES_SHARE
from swarmflow.runtime.transport import precedence
from swarmflow.runtime.transport.hello import LaneName
from swarmflow.runtime.transport.precedence import LEAD_BYTES, Precedence
from swarmflow.runtime.transport.upload_limit import UploadLimit
from tests.runtime.nodes import End, started


@pytest.mark.asyncio
async def test_a_lane_waits_until_no_lane_of_a_lower_rank_has_anything_to_write() -> None:
    order = Precedence()
    order.begin("bulk")
    order.begin("bulk")
    order.begin("sums")
    waiting = asyncio.create_task(order.wait("sums"))
    order.end("bulk")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done(), "another lane has something to write"
    order.end("bulk")
    await waiting


@pytest.mark.asyncio
async def test_a_lane_waits_for_none_of_its_own_rank() -> None:
    order = Precedence()
    order.begin("control")
    await order.wait("bulk")
    order.end("control")
    order.begin("sums")
    await order.wait("sums")


@pytest.mark.asyncio
async def test_a_stuck_lane_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "PATIENCE_S", 0.01)
    order = Precedence()
    order.begin("bulk")
    await order.wait("sums")


@pytest.mark.asyncio
async def test_beside_a_lane_that_always_writes_the_background_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "PATIENCE_S", 60.0)  # it is not impatience that lets it write
    now = 0.0
    order = Precedence(clock=lambda: now)
    order.begin("bulk")
    order.begin("background")
    written: Counter[LaneName] = Counter()

    async def write_background() -> None:
        while True:
            await order.wait("background")
            order.wrote("background", 1)
            written["background"] += 1
            await asyncio.sleep(0)

    writing = asyncio.create_task(write_background())
    for _ in range(3200):
        now += 0.001
        order.wrote("bulk", 1)
        written["bulk"] += 1
        for _ in range(4):
            await asyncio.sleep(0)
    writing.cancel()
    with suppress(asyncio.CancelledError):
        await writing
    assert written["background"] / written.total() == pytest.approx(COPIES_SHARE, rel=0.1)


@pytest.mark.asyncio
async def test_others_wait_for_the_share_of_a_background_lane_that_the_upload_limit_holds_back() -> None:
    order = Precedence()
    order.begin("background")
    order.give(0.75)
    await order.wait("background")
    order.wrote("bulk", LEAD_BYTES)
    await order.wait("bulk")
    with order.limited("background"):
        await order.wait("bulk")  # it is not as far ahead
        order.wrote("bulk", LEAD_BYTES)
        await order.wait("control")
        waiting = asyncio.create_task(order.wait("sums"))
        await asyncio.sleep(0)
        assert not waiting.done()
    order.wrote("background", 2 * LEAD_BYTES)
    await waiting


@pytest.mark.asyncio
async def test_short_background_messages_one_after_the_other_hold_nobody_up() -> None:
    """What they were too short to use of their share is not owed to the next one."""
    order = Precedence()
    order.begin("bulk")
    for _ in range(3):
        order.begin("background")
        order.wrote("bulk", 100 * LEAD_BYTES)
        order.wrote("background", 100)
        order.end("background")
    order.begin("background")
    with order.limited("background"):
        waiting = asyncio.create_task(order.wait("bulk"))
        await asyncio.sleep(0)
        assert waiting.done()


@pytest.mark.asyncio
async def test_what_is_given_ends_with_what_there_is_to_write() -> None:
    order = Precedence()
    order.begin("bulk")
    order.begin("background")
    order.give(0.75)
    await order.wait("background")
    order.wrote("bulk", 8)
    await order.wait("background")  # a part of that is its
    order.wrote("background", 1)
    order.end("background")
    order.begin("background")
    order.wrote("background", 1)
    waiting = asyncio.create_task(order.wait("background"))
    await asyncio.sleep(0)
    assert not waiting.done(), "it gives way again"
    order.end("bulk")
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
            end.links._on_message = lambda sender, header, bodies, role: arrived.append(header.decode())
            sender.links.set_addresses(end.me, end.node.addresses())
            await end.links.start()
        for number in range(4):
            sender.links.send(one.me, f"background {number}".encode(), [bytes(size)], lane="background")
        while not arrived:
            await asyncio.sleep(0.01)
        for number in range(4):
            sender.links.send(two.me, f"tensor {number}".encode(), [bytes(size)], lane="bulk")
        async with asyncio.timeout(60.0):
            while len(arrived) < 8:
                await asyncio.sleep(0.01)
        for end in (sender, one, two):
            await end.links.close(0.0)
    assert arrived[1:5] == [f"tensor {number}" for number in range(4)], "though they came later"
