"""Who opens streams without end is refused or cut, and nobody else: by process, by address, in all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from swarmflow.errors import FrameError
from swarmflow.runtime.transport import links
from swarmflow.runtime.transport.allowance import Allowance
from swarmflow.runtime.transport.door import RELAYED, Caller, Door, DoorLimits, address_of
from swarmflow.runtime.transport.hello import CONFIRMATION, Hello, pack_hello, read_reply
from swarmflow.runtime.transport.limits import DOOR
from swarmflow.runtime.transport.links import STREAM_PROTOCOL
from swarmflow.runtime.transport.node import Node
from tests.owners import RUN_ID, trainer_access
from tests.runtime.nodes import End, started

PLENTY = Allowance(1000, 0.0)
LIMITS = DoorLimits(2, 4, 8, 3, 6, 12, PLENTY, PLENTY)


class Stream:
    """A stream of a caller, as far as a door knows it."""

    def __init__(self, door: Door, name: str, address: str) -> None:
        self.door = door
        self.closed = False
        self.admitted = door.enter(Caller(name, address), self.writer)

    @property
    def writer(self) -> asyncio.StreamWriter:
        return cast(asyncio.StreamWriter, self)

    @property
    def transport(self) -> Stream:
        return self

    def abort(self) -> None:
        self.closed = True
        self.leave()

    def finish(self) -> Stream:
        self.door.finish(self.writer)
        return self

    def leave(self) -> None:
        self.door.leave(self.writer)


def test_one_process_has_few_unfinished_streams_and_few_in_all() -> None:
    door = Door(LIMITS)
    first, second = Stream(door, "a", "x"), Stream(door, "a", "x")
    assert first.admitted
    assert second.admitted
    assert not Stream(door, "a", "x").admitted, "two handshakes are under way"
    first.finish()
    second.finish()
    assert Stream(door, "a", "x").finish().admitted
    assert not Stream(door, "a", "x").admitted, "three streams are open"
    first.leave()
    assert Stream(door, "a", "x").admitted


def test_names_without_end_at_one_address_close_the_oldest_of_their_own() -> None:
    door = Door(LIMITS)
    honest = Stream(door, "honest", "y")
    flood = [Stream(door, f"name-{number}", "x") for number in range(20)]
    assert not honest.closed
    assert all(stream.admitted for stream in flood)
    assert [stream.closed for stream in flood] == [True] * 16 + [False] * 4
    assert honest.finish().admitted


def test_beyond_the_limit_for_all_the_address_gives_way_that_has_most() -> None:
    door = Door(LIMITS)
    honest = [Stream(door, f"honest-{number}", "y") for number in range(2)]
    flood = [Stream(door, f"name-{number}", f"x{number // 3}") for number in range(6)]
    further = Stream(door, "z", "z")
    assert further.admitted
    assert not any(stream.closed for stream in honest)
    assert [stream.closed for stream in flood] == [True, False, False, False, False, False]


def test_open_streams_of_an_address_are_bounded_and_leave_room_for_others() -> None:
    door = Door(LIMITS)
    flood = [Stream(door, f"name-{number}", "x").finish() for number in range(8)]
    assert [stream.admitted for stream in flood] == [True] * 6 + [False] * 2
    assert Stream(door, "honest", "y").admitted
    flood[0].leave()
    assert Stream(door, "name-9", "x").admitted


def test_who_has_used_up_its_allowance_gets_what_time_adds() -> None:
    now = 0.0
    door = Door(replace(LIMITS, process=Allowance(3, 0.5), address=Allowance(5, 1.0)), lambda: now)

    def opened(name: str, address: str = "x") -> bool:
        stream = Stream(door, name, address)
        stream.leave()
        return stream.admitted

    assert [opened("a") for _ in range(4)] == [True, True, True, False]
    assert [opened("b") for _ in range(3)] == [True, True, False], "its address has opened five"
    assert opened("c", "y"), "another address has opened nothing"
    now = 2.0
    assert [opened("a") for _ in range(2)] == [True, False]


def test_nothing_is_kept_of_those_who_are_gone() -> None:
    door = Door(LIMITS)
    for number in range(10_000):
        Stream(door, f"name-{number}", f"x{number}").leave()
    assert door._streams == {}
    assert door._of_process.total() == door._of_address.total() == door._unfinished_of_address.total() == 0
    assert len(door._of_process) == len(door._unfinished_of_process) == 0
    assert len(door._allowances._buckets) < 10_000


@pytest.mark.parametrize(
    ("maddr", "address"),
    [
        ("/ip4/192.0.2.7/tcp/4001", "192.0.2.7"),
        ("/ip4/192.0.2.7/udp/4001/quic", "192.0.2.7"),
        ("/ip6/2001:db8:1:2:3:4:5:6/tcp/1", "2001:db8:1:2::/64"),
        ("/ip6/2001:db8:1:2::9/tcp/1", "2001:db8:1:2::/64"),
        ("/ip4/192.0.2.7/tcp/4001/p2p/QmRelay/p2p-circuit", RELAYED),
        ("/unix/x", "/unix/x"),
    ],
)
def test_an_address_stands_for_all_who_share_it(maddr: str, address: str) -> None:
    assert address_of(maddr) == address


@pytest.mark.asyncio
async def test_a_flood_from_one_address_holds_up_nobody_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over real connections: hellos as fast as they go, from names that change, beside a process that has something."""
    monkeypatch.setattr(links, "DOOR", replace(DOOR, address=Allowance(burst=24, per_s=0.0)))
    async with started(tmp_path, 3) as (here, *flooders):
        where = here.addresses()
        honest = await Node.start(identity_path=tmp_path / "honest", listen=["127.0.0.2:0"], bootstrap=where)
        end, sender = End(here, 1), End(honest, 2)
        await end.links.start()
        sender.links.set_addresses(end.me, where)
        opened = [await _stream(flooder, here, number) for number in range(20) for flooder in flooders]
        assert [welcomed for welcomed, _ in opened] == [True] * 24 + [False] * 16
        assert [await end.refusals.get() for _ in range(16)] == ["hello"] * 16
        sender.links.send(end.me, b"hello", lane="bulk")
        assert (await end.messages.get())[:2] == (sender.me, b"hello")
        assert end.links._door._of_address["127.0.0.2"] == 1
        for _, writer in opened:
            writer.transport.abort()
        for each in (sender, end):
            await each.links.close(0.0)
        await honest.stop()


async def _stream(sender: Node, receiver: Node, number: int) -> tuple[bool, Any]:
    """A stream with a good hello of a life that is new each time: whether it was welcomed, and its writer."""
    reader, writer = await sender.open_stream(receiver.name, STREAM_PROTOCOL, receiver.addresses(), 5.0)
    credential = trainer_access().credential(sender.name)
    with suppress(OSError, FrameError):
        writer.write(pack_hello(Hello(RUN_ID, "control", 1 + number, 0, credential)))
        reply = await read_reply(reader, 5.0)
        writer.write(CONFIRMATION)
        return not reply.reason, writer
    return False, writer
