"""Memory for what arrives: a sender that takes too much is not read on, loses nothing, and holds up nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarmflow.core.protocol.types import ProcessId, Role
from swarmflow.runtime.transport.door import Caller
from swarmflow.runtime.transport.frames import FrameLimits, pack_front
from swarmflow.runtime.transport.lanes import LaneSettings
from swarmflow.runtime.transport.limits import FRAMES_AT_ONCE, IN_FLIGHT_BYTES, budget_limits
from swarmflow.runtime.transport.node import Node
from swarmflow.runtime.transport.receive_budget import BudgetLimits, ReceiveBudget
from tests.runtime.nodes import End, hostile_stream, linked, started, until

pytestmark = pytest.mark.asyncio
LIMITS = BudgetLimits(of_process=10, of_address=20, in_all=30)
A, B, C, D, E = (Caller(name, address) for name, address in zip("abcde", "xxyyz", strict=True))
MEBIBYTE = 1 << 20


def take(budget: ReceiveBudget, caller: Caller, size_bytes: int) -> asyncio.Task[None]:
    return asyncio.create_task(budget.take(caller, size_bytes))


async def granted(*tasks: asyncio.Task[None]) -> list[bool]:
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_process_waits_for_its_own_frames_and_others_do_not() -> None:
    budget = ReceiveBudget(LIMITS)
    first, second, other = take(budget, A, 6), take(budget, A, 6), take(budget, B, 6)
    assert await granted(first, second, other) == [True, False, True]
    budget.give_back(A, 6)
    assert await granted(second) == [True]


async def test_the_processes_of_an_address_wait_for_one_another_and_those_of_another_do_not() -> None:
    budget = ReceiveBudget(LIMITS)
    flood = [take(budget, Caller(f"name-{number}", "x"), 10) for number in range(9)]
    assert await granted(*flood) == [True, True, *[False] * 7]
    honest = take(budget, C, 10)
    assert await granted(honest) == [True]
    await end(*flood[2:])


async def test_when_all_memory_is_taken_a_long_frame_is_not_passed_by_short_ones_for_ever() -> None:
    budget = ReceiveBudget(LIMITS)
    held = [take(budget, caller, 10) for caller in (A, B, C)]
    assert await granted(*held) == [True] * 3
    long, short = take(budget, E, 10), take(budget, D, 1)
    budget.give_back(A, 3)
    assert await granted(long, short) == [False, False]
    budget.give_back(A, 7)
    assert await granted(long, short) == [True, False]
    budget.give_back(B, 10)
    assert await granted(short) == [True]


async def test_a_frame_longer_than_the_limit_comes_alone() -> None:
    budget = ReceiveBudget(LIMITS)
    first, long = take(budget, A, 1), take(budget, B, 100)
    assert await granted(first, long) == [True, False]
    budget.give_back(A, 1)
    assert await granted(long) == [True]
    after = take(budget, C, 1)
    assert await granted(after) == [False]
    budget.give_back(B, 100)
    assert await granted(after) == [True]


async def test_who_gives_up_waiting_takes_nothing_even_at_the_moment_of_the_grant() -> None:
    budget = ReceiveBudget(LIMITS)
    await budget.take(A, 10)
    waiting, late = take(budget, A, 10), take(budget, A, 10)
    assert await granted(waiting, late) == [False, False]
    waiting.cancel()
    budget.give_back(A, 10)
    late.cancel()
    await asyncio.gather(waiting, late, return_exceptions=True)
    assert not budget._in_all
    assert not budget._of_process
    assert not budget._of_address


async def test_those_behind_a_long_frame_that_gives_up_go_on() -> None:
    budget = ReceiveBudget(LIMITS)
    held = [take(budget, caller, 10) for caller in (A, C)]
    long, short = take(budget, E, 15), take(budget, B, 1)
    assert await granted(*held, long, short) == [True, True, False, False]
    long.cancel()
    assert await granted(short) == [True]


async def test_the_limits_follow_from_the_largest_tensor() -> None:
    assert budget_limits(0) == budget_limits(1000) == BudgetLimits(*(n * IN_FLIGHT_BYTES for n in (1, 4, 16)))
    assert budget_limits(IN_FLIGHT_BYTES).of_process == 2 * IN_FLIGHT_BYTES


async def test_a_sender_that_begins_long_frames_and_stalls_holds_up_only_itself(tmp_path: Path) -> None:
    """Its further frames wait on its side of the network; none is dropped, and they arrive once it goes on."""
    async with started(tmp_path, 3) as (here, flooder, honest):
        end, sender = End(here, 1), End(honest, 2)
        await end.links.start()
        end.links._budget.limits = BudgetLimits(4 * MEBIBYTE, 8 * MEBIBYTE, 16 * MEBIBYTE)
        sender.links.set_addresses(end.me, here.addresses())
        lanes = [await _begin(flooder, here, "bulk"), await _begin(flooder, here, "sums")]
        await until(lambda: len(end.links._budget._waiting) == 1)
        for _ in range(3):
            sender.links.send(end.me, b"tensor", [bytes(3 * MEBIBYTE)], lane="bulk")
        assert await end.headers(3) == [b"tensor"] * 3
        assert end.links._budget._of_process == {flooder.name: 4 * MEBIBYTE - 1000 + len(b"long")}
        for each in (sender, end):
            await each.links.close(0.0)
        for writer in lanes:
            writer.transport.abort()
        await until(lambda: not end.links._budget._in_all)


async def _begin(sender: Node, receiver: Node, lane: str) -> asyncio.StreamWriter:
    """Begin a frame of nearly 4 MiB, and send a half of it."""
    _, writer = await hostile_stream(sender, receiver, lane=lane)  # type: ignore[arg-type]
    size = 4 * MEBIBYTE - 1000
    writer.write(pack_front(0, b"long", [size], FrameLimits()) + bytes(size // 2))
    return writer


async def test_a_frame_for_which_no_memory_becomes_free_ends_its_stream(tmp_path: Path) -> None:
    async with linked(tmp_path, settings=LaneSettings(stall_timeout_s=0.3)) as (one, two):
        two.links._budget.limits = BudgetLimits(MEBIBYTE, MEBIBYTE, MEBIBYTE)
        await two.links._budget.take(Caller("another", "127.0.0.1"), MEBIBYTE)
        one.links.send(two.me, b"tensor", [bytes(MEBIBYTE)], lane="bulk")
        assert await two.refusals.get() == "stalled"
        assert (await one.losses.get())[0] == two.me


async def test_many_messages_of_one_process_leave_turns_to_everything_else(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as (here, flooder):
        counts = {"messages": 0, "longest": 0}
        all_read = asyncio.Event()

        def heard(sender: ProcessId, header: bytes, bodies: list[memoryview], role: Role | None) -> None:
            counts["messages"] += 1
            counts["longest"] = max(counts["longest"], counts["messages"] - counts.get("turn", 0))
            if counts["messages"] == 3000:
                all_read.set()

        end = End(here, 1, on_message=heard)
        await end.links.start()
        _, writer = await hostile_stream(flooder, here)
        writer.write(b"".join(pack_front(number, b"m", [], FrameLimits()) for number in range(3000)))
        while not all_read.is_set():
            counts["turn"] = counts["messages"]
            await asyncio.sleep(0)
        assert counts["longest"] <= 2 * FRAMES_AT_ONCE
        writer.transport.abort()
        await end.links.close(0.0)
