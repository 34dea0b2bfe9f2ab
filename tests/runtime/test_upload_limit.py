"""The limit of what a process sends: held over all links together, fair to each, and of no weight for control."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from swarmflow.runtime.transport.hello import LANES
from swarmflow.runtime.transport.upload_limit import BURST_S, PIECE_BYTES_MIN, UploadLimit
from tests.runtime.nodes import End, started

RATE = 1_000_000.0
BUSY_S = 1.0  # that a busy machine may wake a sleeping process too late
pytestmark = pytest.mark.asyncio


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, waiting))
        await waiting

    async def run(self, *work: asyncio.Task[None]) -> None:
        """Let time pass until the work is done."""
        while not all(task.done() for task in work):
            await asyncio.sleep(0)
            if self._sleepers:
                first = min(self._sleepers, key=lambda sleeper: sleeper[0])
                self._sleepers.remove(first)
                self.now = first[0]
                first[1].set_result(None)
                for _ in range(3):
                    await asyncio.sleep(0)


async def test_two_that_send_share_the_limit_evenly() -> None:
    fake = FakeTime()
    limit = UploadLimit(RATE, fake.clock, fake.sleep)
    ended: dict[str, float] = {}

    async def send(name: str, pieces: int) -> None:
        for _ in range(pieces):
            await limit.wait(10_000)
        ended[name] = fake.now - 1000.0

    await fake.run(*(asyncio.create_task(send(name, pieces)) for name, pieces in (("one", 100), ("two", 50))))
    assert ended["two"] == pytest.approx(1.0, abs=0.03), "half of the limit until it is done"
    assert ended["one"] == pytest.approx(1.5, abs=0.03)


async def test_idle_time_is_made_up_for_no_longer_than_a_burst() -> None:
    fake = FakeTime()
    limit = UploadLimit(RATE, fake.clock, fake.sleep)
    await limit.wait(10_000)
    fake.now += 3600.0
    before_s = fake.now

    async def send() -> None:
        for _ in range(100):
            await limit.wait(10_000)

    await fake.run(asyncio.create_task(send()))
    assert fake.now - before_s == pytest.approx(1.0 - BURST_S, abs=0.03)


async def test_what_does_not_wait_is_counted() -> None:
    fake = FakeTime()
    limit = UploadLimit(RATE, fake.clock, fake.sleep)
    limit.count(2_000_000)
    await fake.run(asyncio.create_task(limit.wait(1)))
    assert fake.now == pytest.approx(1002.0)


async def test_a_slow_limit_has_short_pieces() -> None:
    assert UploadLimit(125_000).piece_bytes == 6250
    assert UploadLimit(1000).piece_bytes == PIECE_BYTES_MIN


async def test_links_keep_to_the_limit_and_control_messages_do_not_wait(tmp_path: Path) -> None:
    rate, each_bytes = 8_000_000.0, 4_000_000
    async with started(tmp_path, 3) as nodes:
        sender = End(nodes[0], 1, upload=UploadLimit(rate))
        receivers = [End(node, 2) for node in nodes[1:]]
        for receiver in receivers:
            await receiver.links.start()
            sender.links.set_addresses(receiver.me, receiver.node.addresses())
            for lane in LANES:
                sender.links.send(receiver.me, b"open", lane=lane)
            assert await receiver.headers(len(LANES)) == [b"open"] * len(LANES)
        began_s = time.monotonic()
        for receiver in receivers:
            for part in range(4):
                sender.links.send(receiver.me, b"tensor %d" % part, [bytes(each_bytes // 4)], lane="bulk")
            sender.links.send(receiver.me, b"heartbeat")
        for receiver in receivers:
            headers = await receiver.headers(5)
            assert headers.index(b"heartbeat") < 2, "it overtakes a second of tensors"
            headers.remove(b"heartbeat")
            assert headers == [b"tensor %d" % part for part in range(4)]
        took_s = time.monotonic() - began_s
        expected_s = len(receivers) * each_bytes / rate - BURST_S
        assert took_s > expected_s * 0.97, "never more than the limit"
        assert took_s < expected_s * 1.05 + BUSY_S, "and not much less"
        for end in (sender, *receivers):
            await end.links.close(0.0)
