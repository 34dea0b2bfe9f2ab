"""Links under attack and death: bad frames close their stream only, and a death is seen at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swarmflow.authority.access import AccessControl
from swarmflow.core.protocol.types import ProcessId, Role
from swarmflow.errors import FrameError
from swarmflow.runtime.transport.frames import FrameLimits, pack_front
from swarmflow.runtime.transport.hello import PROTOCOL_VERSION, Hello, LaneName, pack_hello, read_reply
from swarmflow.runtime.transport.lanes import LaneSettings
from swarmflow.runtime.transport.limits import DOOR, HANDOVER_BYTES, REPORT_BYTES
from swarmflow.runtime.transport.links import STREAM_PROTOCOL
from tests.owners import OWNER, RUN_ID
from tests.runtime.nodes import End, damage_next, hostile_stream, linked, started

pytestmark = pytest.mark.asyncio

LIMITS = FrameLimits(header_bytes_max=64, bodies_bytes_max=4096, bodies_max=2)
WIDE = FrameLimits()
GOOD = pack_front(0, b"good", [], WIDE)


async def test_only_a_trainer_sends_headers_as_long_as_a_roster(tmp_path: Path) -> None:
    async with started(tmp_path, 3) as (here, trainer, peer):
        end, header = End(here, 1), bytes(REPORT_BYTES + 1)
        await end.links.start()
        one, two = End(trainer, 2), End(peer, 3, access=AccessControl(RUN_ID, OWNER.certify("peer")))
        for sender in (one, two):
            sender.links.set_addresses(end.me, here.addresses())
        two.links.send(end.me, header)
        assert await end.refusals.get() == "header_size"
        one.links.send(end.me, header)
        assert (await end.messages.get())[0] == one.me
        end.links.fit(0, REPORT_BYTES // HANDOVER_BYTES, 1)
        two.links.send(end.me, header)
        assert (await end.messages.get())[0] == two.me
        for each in (one, two, end):
            await each.links.close(0.0)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (GOOD + b"\x00" * 64, "magic"),
        (GOOD + GOOD, "sequence"),
        (GOOD + pack_front(2, b"lost one", [], WIDE), "sequence"),
        (GOOD + pack_front(1, b"x" * 65, [], WIDE), "header_size"),
        (GOOD + pack_front(1, b"x", [2048, 2049], WIDE), "body_size"),
        (GOOD + pack_front(1, b"x", [1, 1, 1], WIDE), "body_count"),
        (GOOD + pack_front(1, b"x", [100], WIDE) + b"short", "truncated"),
    ],
    ids=["noise", "replayed", "lost", "long header", "long body", "many bodies", "cut"],
)
async def test_a_bad_frame_is_counted_and_closes_its_stream_only(tmp_path: Path, data: bytes, kind: str) -> None:
    async with linked(tmp_path, limits=LIMITS) as (one, two):
        one.links.send(two.me, b"bulk before", lane="bulk")
        await two.headers(1)
        reader, writer = await hostile_stream(one.node, two.node)
        writer.write(data)
        writer.write_eof()
        assert await two.refusals.get() == kind
        assert await reader.read() == b""
        writer.close()
        one.links.send(two.me, b"bulk after", lane="bulk")
        one.links.send(two.me, b"control anew")
        assert (await two.headers(1)) == [b"good"]
        assert sorted(await two.headers(2)) == [b"bulk after", b"control anew"]
        assert one.losses.empty()
        assert two.losses.empty()


@pytest.mark.parametrize("lane", ["bulk", "background"])
async def test_a_body_that_is_damaged_on_the_way_is_lost_and_its_sender_named(
    lane: LaneName, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with linked(tmp_path) as (one, two):
        damage_next(one.node, monkeypatch, least_bytes=1000)
        one.links.send(two.me, b"control before")
        await two.headers(1)
        one.links.send(two.me, b"tensor", [bytes(100), bytes(100_000)], lane=lane)
        assert await two.refusals.get() == "damaged_body"
        assert (await one.losses.get())[0] == two.me, "it has to send again what it has kept"
        assert two.messages.empty()
        [line] = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert line.getMessage().startswith(f"from {one.me}: refused a frame (damaged_body): a body was damaged")
        one.links.send(two.me, b"tensor anew", [bytes(100_000)], lane=lane)
        assert await two.headers(1) == [b"tensor anew"]
        assert two.refusals.empty()


async def test_a_frame_that_stalls_is_given_up(tmp_path: Path) -> None:
    async with linked(tmp_path, settings=LaneSettings(stall_timeout_s=0.1)) as (one, two):
        _, writer = await hostile_stream(one.node, two.node)
        writer.write(GOOD + pack_front(1, b"x", [100], WIDE))
        assert await two.refusals.get() == "stalled"
        process, reason = await two.losses.get()
        assert process == one.me
        assert "stalled" in reason
        writer.close()


async def test_a_message_that_its_reader_refuses_counts_as_refused(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):

        def refuse(sender: ProcessId, header: bytes, bodies: list[memoryview], role: Role | None) -> None:
            raise FrameError("no such message")

        picky = End(two.node, 3, on_message=refuse)
        await picky.links.start()
        target = ProcessId(two.node.name, 3)
        one.links.send(target, b"gibberish")
        assert await picky.refusals.get() == "message"
        assert (await one.losses.get())[0] == target
        await picky.links.close(0.0)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n" * 4, pack_hello(Hello("", "bulk", 1, 0))[:5], b""], ids=["other", "cut", "nothing"]
)
async def test_a_stream_without_a_hello_is_refused(tmp_path: Path, data: bytes) -> None:
    async with linked(tmp_path, settings=LaneSettings(open_timeout_s=0.5)) as (one, two):
        reader, writer = await one.node.open_stream(two.node.name, STREAM_PROTOCOL, (), 5.0)
        writer.write(data)
        assert await two.refusals.get() == "hello"
        assert await reader.read() == b""
        writer.close()
        assert two.losses.empty()


async def test_another_version_is_told_both_versions(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        reader, writer = await one.node.open_stream(two.node.name, STREAM_PROTOCOL, (), 5.0)
        writer.write(pack_hello(Hello(RUN_ID, "control", 1, 0, version=99)))
        reply = await read_reply(reader, 5.0)
        assert reply.reason == f"protocol version 99, this process speaks {PROTOCOL_VERSION}"
        writer.close()


async def test_streams_that_say_nothing_are_few(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        silent = [
            await one.node.open_stream(two.node.name, STREAM_PROTOCOL, (), 5.0)
            for _ in range(DOOR.unfinished_of_process + 1)
        ]
        assert await two.refusals.get() == "hello"
        for _, writer in silent:
            writer.close()


async def test_a_daemons_death_is_seen_on_both_sides(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        one.links.send(two.me, b"to two")
        two.links.send(one.me, b"to one")
        await one.headers(1)
        await two.headers(1)
        began_s = time.perf_counter()
        os.kill(two.node.daemon_pid, signal.SIGKILL)
        async with asyncio.timeout(2.0):
            assert (await one.losses.get())[0] == two.me
            assert (await two.losses.get())[0] == one.me
            assert "-9" in await two.node.died()
        assert time.perf_counter() - began_s < 2.0
        await asyncio.gather(one.links.close(0.5), two.links.close(0.5))
        assert one.losses.empty()
        assert two.losses.empty()


async def test_a_killed_process_is_lost_as_its_connection_breaks(tmp_path: Path) -> None:
    async with started(tmp_path, 1) as (node,):
        end = End(node, 1)
        await end.links.start()
        remote = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.runtime.remote",
            str(tmp_path / "remote.id"),
            node.addresses()[0],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        try:
            sender, header, *_ = await end.messages.get()
            assert header == b"here I am"
            end.links.send(sender, b"welcome")
            assert remote.stdout is not None
            assert await remote.stdout.readline() == b"b'welcome'\n"
            remote.send_signal(signal.SIGKILL)
            lost, _ = await asyncio.wait_for(end.losses.get(), 30.0)
            assert lost == sender
        finally:
            if remote.returncode is None:
                remote.kill()
            await remote.communicate()
            await end.links.close(0.0)
        assert end.losses.empty()
