"""Links between real libp2p daemons: order, lanes, backpressure, and a stream's end seen from both sides."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.runtime.transport.frames import FrameLimits, pack_front
from swarmflow.runtime.transport.hello import CONFIRMATION, LANES, Hello, pack_hello, read_reply
from swarmflow.runtime.transport.lanes import LaneSettings
from swarmflow.runtime.transport.limits import ADDRESSED_MAX
from swarmflow.runtime.transport.links import STREAM_PROTOCOL
from swarmflow.runtime.transport.node import Node
from tests.owners import OTHER, RUN_ID, trainer_access
from tests.runtime.nodes import End, deaf, linked, started

MEBIBYTE = 1 << 20


@pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])
async def test_messages_arrive_whole_and_in_order_in_both_directions(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        large = bytes(range(256)) * 20_000
        for index in range(50):
            one.links.send(two.me, b"to two %d" % index, [b"a" * index, memoryview(large)[index:]])
            two.links.send(one.me, b"to one %d" % index, lane="bulk" if index % 2 else "control")
        for index in range(50):
            sender, header, bodies, _ = await two.messages.get()
            assert (sender, header) == (one.me, b"to two %d" % index)
            assert [bytes(body) for body in bodies] == [b"a" * index, large[index:]]
        headers = await one.headers(50)
        assert [h for h in headers if int(h.split()[-1]) % 2] == [b"to one %d" % i for i in range(1, 50, 2)]
        assert [h for h in headers if not int(h.split()[-1]) % 2] == [b"to one %d" % i for i in range(0, 50, 2)]
        assert one.counts["queued control"] == 0
        assert one.counts["sent control"] == two.counts["received control"] > 50 * MEBIBYTE
        assert one.losses.empty()
        assert two.losses.empty()


@pytest.mark.asyncio
async def test_a_small_message_overtakes_tensors(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        one.links.send(two.me, b"first")
        await two.headers(1)
        for index in range(16):
            one.links.send(two.me, b"tensor %d" % index, [bytes(4 * MEBIBYTE)], lane="bulk")
        one.links.send(two.me, b"heartbeat")
        headers = await two.headers(17)
        assert headers.index(b"heartbeat") < 16


@pytest.mark.extended
@pytest.mark.asyncio
async def test_the_largest_tensor_of_a_run_fits_where_usual_limits_are_too_small(tmp_path: Path) -> None:
    """A boundary tensor of 16,384 tokens of a model 8,192 wide, in fp32."""
    tensor = bytearray(16384 * 8192 * 4)
    async with linked(tmp_path) as (one, two):
        with pytest.raises(ValueError, match="bodies"):
            one.links.send(two.me, b"too large", [tensor], lane="bulk")
        for end in (one, two):
            end.links.fit(len(tensor), 256, 4)
        one.links.send(two.me, b"large", [tensor], lane="bulk")
        _, header, [body], _ = await two.messages.get()
        assert (header, len(body)) == (b"large", len(tensor))


@pytest.mark.asyncio
async def test_the_addresses_of_names_without_end_are_not_kept_and_those_that_are_dialled_are(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        one.links.set_addresses("first", ["/ip4/192.0.2.1/tcp/1"])
        one.links.send(two.me, b"dials")
        await two.headers(1)
        for number in range(ADDRESSED_MAX - 1):
            one.links.set_addresses(f"name-{number}", ["/ip4/192.0.2.1/tcp/1"])
        assert len(one.links._addresses) == ADDRESSED_MAX
        assert two.me.name in one.links._addresses
        assert "first" not in one.links._addresses


@pytest.mark.asyncio
async def test_a_body_is_made_when_its_turn_comes(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        made: list[int] = []

        def later(index: int) -> Callable[[], bytes]:
            def make() -> bytes:
                made.append(index)
                return b"%d" % index

            return make

        for index in range(3):
            one.links.send(two.me, b"lazy", [later(index)])
        assert made == []
        assert [bytes((await two.messages.get())[2][0]) for _ in range(3)] == [b"0", b"1", b"2"]


@pytest.mark.asyncio
async def test_close_sends_what_is_queued_and_the_other_side_is_told(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        for index in range(20):
            one.links.send(two.me, b"%d" % index, [bytes(MEBIBYTE)], lane="bulk")
        await one.links.close(10.0)
        one.links.send(two.me, b"too late")
        assert await two.headers(20) == [b"%d" % index for index in range(20)]
        assert await two.losses.get() == (one.me, "said goodbye")
        assert two.messages.empty()
        assert two.links.connected() == []
        assert one.losses.empty()


@pytest.mark.asyncio
async def test_forgetting_a_process_tells_nobody_here_but_its_side_sees_it(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        one.links.send(two.me, b"to two")
        two.links.send(one.me, b"to one")
        await two.headers(1)
        await one.headers(1)
        one.links.forget(two.me)
        assert one.links.connected() == []
        process, _ = await two.losses.get()
        assert process == one.me
        assert one.losses.empty()


@pytest.mark.asyncio
async def test_a_lost_process_is_told_once_and_the_next_message_opens_anew(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        for lane in LANES[:2]:
            one.links.send(two.me, b"hello", lane=lane)
            two.links.send(one.me, b"hello", lane=lane)
        await one.headers(2)
        await two.headers(2)
        two.links.forget(one.me)
        process, reason = await one.losses.get()
        assert process == two.me
        assert reason
        one.links.send(two.me, b"again")
        assert await two.headers(1) == [b"again"]
        assert one.losses.empty()


@pytest.mark.asyncio
async def test_a_process_started_anew_is_another(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        one.links.send(two.me, b"first life")
        await two.headers(1)
        again = End(one.node, one.me.incarnation + 1)
        again.links.set_addresses(two.me, two.node.addresses())
        again.links.send(two.me, b"second life")
        assert (await two.messages.get())[0] == again.me
        assert await two.losses.get() == (one.me, "was started anew")
        assert await one.losses.get() == (two.me, "closed the connection")
        one.links.send(ProcessId(two.me.name, two.me.incarnation + 1), b"to a life that is not")
        assert "another incarnation" in (await one.losses.get())[1]
        one.links.send(two.me, b"a stray of the first life", lane="bulk")
        assert "an earlier incarnation" in (await one.losses.get())[1]
        assert two.messages.empty()
        await again.links.close(0.0)


@pytest.mark.asyncio
async def test_a_hello_that_was_not_confirmed_replaces_nobody(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        late, dead = [await greeted(one.node, two.node, incarnation) for incarnation in (1 << 60, 1 << 61)]
        one.links.send(two.me, b"second life, of a smaller number")
        assert (await two.messages.get())[0] == one.me
        dead[1].close()
        late[1].write(CONFIRMATION + pack_front(0, b"of the first life", [], FrameLimits()))
        assert await late[0].read() == b""
        one.links.send(two.me, b"on the same stream")
        assert (await two.messages.get())[:2] == (one.me, b"on the same stream")
        assert two.losses.empty()
        reader, writer = await one.node.open_stream(two.node.name, STREAM_PROTOCOL, two.node.addresses(), 5.0)
        writer.write(pack_hello(Hello(RUN_ID, "control", 1 << 60, 0, trainer_access().credential(one.node.name))))
        assert "an earlier incarnation" in (await read_reply(reader, 5.0)).reason


async def greeted(sender: Node, receiver: Node, incarnation: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream that was welcomed, and is not confirmed."""
    reader, writer = await sender.open_stream(receiver.name, STREAM_PROTOCOL, receiver.addresses(), 5.0)
    credential = trainer_access().credential(sender.name)
    writer.write(pack_hello(Hello(RUN_ID, "control", incarnation, 0, credential)))
    assert not (await read_reply(reader, 5.0)).reason
    return reader, writer


@pytest.mark.asyncio
async def test_a_first_contact_need_not_know_the_incarnation(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        one.links.send(ProcessId(two.me.name, 0), b"who are you?")
        sender, header, *_ = await two.messages.get()
        assert (sender, header) == (one.me, b"who are you?")
        two.links.send(sender, b"this")
        assert (await one.messages.get())[:2] == (two.me, b"this")


@pytest.mark.asyncio
async def test_a_message_to_any_incarnation_breaks_no_stream_of_one_that_is_known(tmp_path: Path) -> None:
    """A peer asks another trainer whether it can be dialled while that trainer leads it: neither is lost by it."""
    async with linked(tmp_path) as (one, two):
        anyone = ProcessId(two.me.name, 0)
        for to, header in ((two.me, b"known"), (anyone, b"any"), (two.me, b"known again"), (anyone, b"any again")):
            one.links.send(to, header)
            assert (await two.messages.get())[:2] == (one.me, header)
        assert one.links.connected() == [anyone, two.me]
        assert one.losses.empty()
        assert two.losses.empty()


@pytest.mark.asyncio
async def test_another_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        stranger = End(one.node, 9, access=trainer_access(OTHER))
        stranger.links.set_addresses(two.me, two.node.addresses())
        stranger.links.send(two.me, b"hello")
        process, reason = await stranger.losses.get()
        assert process == two.me
        assert "another run" in reason
        assert await two.refusals.get() == "hello"
        assert two.messages.empty()


@pytest.mark.asyncio
async def test_a_full_queue_loses_the_process_without_blocking(tmp_path: Path) -> None:
    async with linked(tmp_path, settings=LaneSettings(queue_bytes_max=4 * MEBIBYTE)) as (one, two):
        for _ in range(5):
            one.links.send(two.me, b"h", [bytes(MEBIBYTE)], lane="bulk")
        assert one.losses.empty()
        process, reason = await one.losses.get()
        assert process == two.me
        assert "full" in reason
        await one.links.close(0.0)
        assert one.counts["queued bulk"] == 0


@pytest.mark.asyncio
async def test_a_process_that_accepts_and_never_reads_is_lost(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as (first, second), deaf(second) as target:
        one = End(first, 1, settings=LaneSettings(stall_timeout_s=0.3))
        one.links.set_addresses(target, second.addresses())
        one.links.send(target, b"h", [bytes(100 * MEBIBYTE)], lane="bulk")
        process, reason = await one.losses.get()
        assert (process, reason) == (target, "took no bytes for 0.3 s")
        await one.links.close(0.0)


@pytest.mark.asyncio
async def test_a_process_that_nobody_knows_is_lost_with_the_reason(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as (first, second):
        gone = ProcessId(second.name, 2)
        addresses = second.addresses()
        await second.stop()
        one = End(first, 1, settings=LaneSettings(open_timeout_s=2.0))
        one.links.set_addresses(gone, addresses)
        one.links.send(gone, b"hello")
        process, reason = await one.losses.get()
        assert process == gone
        assert reason.startswith("cannot be reached: ")
        assert "\n" not in reason
        await one.links.close(0.0)


@pytest.mark.asyncio
async def test_a_message_over_the_limits_or_to_oneself_is_the_callers_error(tmp_path: Path) -> None:
    async with linked(tmp_path, limits=FrameLimits(8, 16, 1)) as (one, two):
        for header, bodies in ((b"x" * 9, []), (b"h", [bytes(17)]), (b"h", [b"", b""]), (b"", [])):
            with pytest.raises(ValueError, match=r"limit|header"):
                one.links.send(two.me, header, bodies)
        with pytest.raises(ValueError, match="itself"):
            one.links.send(one.me, b"h")


@pytest.mark.asyncio
async def test_a_message_of_many_members_arrives_whole_and_in_its_place(tmp_path: Path) -> None:
    async with linked(tmp_path) as (one, two):
        long = random.Random(0).randbytes(5 * MEBIBYTE)
        for header in (b"before", long, b"after"):
            one.links.send(two.me, header)
        assert await two.headers(3) == [b"before", long, b"after"]


@pytest.mark.asyncio
async def test_throughput_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with linked(tmp_path) as (one, two):
        one.links.send(two.me, b"warm", lane="bulk")
        await two.headers(1)
        body = bytes(4 * MEBIBYTE)
        started_s = time.perf_counter()
        for _ in range(25):
            one.links.send(two.me, b"h", [body], lane="bulk")
        assert await two.headers(25) == [b"h"] * 25
        seconds = time.perf_counter() - started_s
        with capsys.disabled():
            print(f"\nlinks: 100 MiB in frames of 4 MiB at {100 * MEBIBYTE / seconds / 1e6:.0f} MB/s")
