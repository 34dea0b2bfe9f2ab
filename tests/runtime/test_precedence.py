"""Lanes that give way: they write when no lane of a lower rank has anything to write, or when their patience ends."""

from __future__ import annotations

import asyncio

import pytest

from swarmflow.runtime.transport import precedence
from swarmflow.runtime.transport.precedence import Precedence


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
