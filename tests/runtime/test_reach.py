"""Announced addresses: what those who join find out about them, and what a trainer makes of it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import uvloop

from swarmflow.core.protocol.types import ProcessId
from swarmflow.runtime.operations.reach import ADDRESSES_MAX, Announced, local_addresses, report_reach, try_address
from swarmflow.runtime.transport.requests import Arguments
from tests.owners import invite_of
from tests.runtime.nodes import started
from tests.runtime.test_session import opened

HERE, THERE = "/ip4/192.0.2.7/tcp/7400", "/dns4/train.example.org/tcp/7400"
GIVEN = ("192.0.2.7:7400", "train.example.org:7400")
WHO = "QmZfUuDNiqPfxiThFLaXZwmynp2jigFaR9jSEbXbU1GUWX"


@pytest.mark.asyncio
async def test_an_address_is_reached_where_libp2p_answers(tmp_path: Path) -> None:
    async with started(tmp_path, 1) as [node]:
        for address in node.addresses():
            assert await try_address(address) == ""


@pytest.mark.asyncio(loop_factories=["uvloop", "asyncio"])
async def test_why_it_is_not_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert await try_address(f"/ip4/127.0.0.1/tcp/{port}", timeout_s=0.1) == "no answer within 0.1 s"
    own_words = isinstance(asyncio.get_running_loop(), uvloop.Loop)
    refused = "Connection refused" if own_words else f"Connect call failed ('127.0.0.1', {port})"
    assert await try_address(f"/ip4/127.0.0.1/tcp/{port}") == refused
    web = await asyncio.start_server(lambda reader, writer: writer.write(b"HTTP/1.1 400 Bad"), "127.0.0.1", 0)
    port = web.sockets[0].getsockname()[1]
    assert await try_address(f"/ip4/127.0.0.1/tcp/{port}", 1.0) in (
        "no answer within 1 s",
        "what answers there is no libp2p process",
    )
    web.close()


@pytest.mark.asyncio
async def test_what_is_not_plain_tcp_is_not_tried() -> None:
    circuit = f"{HERE}/p2p/{WHO}/p2p-circuit"
    for address in ("/ip4/127.0.0.1/udp/9/quic", circuit, "nonsense", "/ip4/1.2.3.4", "/dns4/..a/tcp/1"):
        assert await try_address(address) is None


@pytest.mark.asyncio
async def test_a_trainer_that_announces_no_addresses_ends_nobody(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as nodes:
        here, trainer = [await opened(node) for node in nodes]
        received: asyncio.Future[Arguments] = asyncio.get_running_loop().create_future()

        async def announced(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
            return [msgspec.json.encode(["x", "/dns4/..a/tcp/1", "/ip4/127.0.0.1/tcp/1"])]

        async def reached(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
            received.set_result(arguments)
            return []

        trainer.requests.serve("announced", announced)
        trainer.requests.serve("reached", reached)
        here.links.set_addresses(trainer.me, trainer.node.addresses())
        invite = invite_of(*nodes[1].addresses(), f"/dns4/..a/tcp/1/p2p/{WHO}")
        await report_reach(here, invite, trainer.me)
        assert "/ip4/127.0.0.1/tcp/1" in await received
        await here.close()
        await trainer.close()


def test_each_address_is_warned_of_once_and_cleared_once() -> None:
    announced = Announced(GIVEN)
    (info, notice), (warning, complaint) = announced.results(
        WHO, {HERE: "", THERE: "no answer\nwithin 5 s\x1b[2J" + "x" * 9999}
    )
    assert (info, warning) == (logging.INFO, logging.WARNING)
    assert notice == "--announce 192.0.2.7:7400: process U1GUWX reaches it"
    failed = "--announce train.example.org:7400 cannot be reached by process U1GUWX (no answer within 5 s\\x1b[2J"
    assert complaint.startswith(failed)
    assert complaint.isprintable()
    assert len(complaint) < 400
    assert announced.results("other", {HERE: "", THERE: "refused"}) == []
    assert announced.results("other", {THERE: ""}) == [
        (logging.INFO, "--announce train.example.org:7400: process other reaches it")
    ]


def test_what_was_not_announced_is_not_told_of() -> None:
    announced = Announced(GIVEN)
    assert announced.results(WHO, {"/ip4/198.51.100.9/tcp/1": "refused", HERE: 7}) == []
    many = Announced([f"192.0.2.7:{port}" for port in range(1, 100)])
    assert len(many.results(WHO, {f"/ip4/192.0.2.7/tcp/{port}": "refused" for port in range(1, 100)})) == ADDRESSES_MAX


def test_near_processes_get_addresses_that_are_not_announced() -> None:
    assert local_addresses(["/ip4/127.0.0.1/tcp/7400"], WHO) == [f"/ip4/127.0.0.1/tcp/7400/p2p/{WHO}"]
    assert local_addresses(["/ip4/127.0.0.1/tcp/0", "/ip6/::/tcp/7400"], WHO) == []
    everywhere = local_addresses(["/ip4/0.0.0.0/tcp/7400"], WHO)
    assert everywhere[-1] == f"/ip4/127.0.0.1/tcp/7400/p2p/{WHO}"
    assert not any("0.0.0.0" in address for address in everywhere)
