"""The daemon's control protocol without hivemind, against hivemind's own encoding of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from hivemind.p2p import PeerID
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from swarmflow.errors import NetworkError
from swarmflow.runtime.transport import p2pd
from swarmflow.runtime.transport.daemon import Daemon
from swarmflow.system import resident_bytes
from tests.runtime.nodes import until

NAMES = ["QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "12D3KooWBxdvPYPDgtpQ3fByWxjCUcsMzVr83AJo4rsta18wUC2m"]
ADDRESSES = [
    "/ip4/127.0.0.1/tcp/4001",
    "/ip6/::1/udp/65535/quic-v1",
    "/dns4/example.org/tcp/1",
    "/dns/a.b/udp/7/quic",
    "/ip6/2001:db8::1/tcp/443",
]


@pytest.mark.parametrize("text", ADDRESSES)
def test_addresses_are_the_bytes_that_hivemind_makes_of_them(text: str) -> None:
    assert p2pd.address_bytes(text) == Multiaddr(text).to_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_relay_is_named_by_its_multihash_as_libp2p_wants_it(name: str) -> None:
    peer = PeerID.from_base58(name).to_bytes()
    wanted = Multiaddr("/ip4/10.0.0.1/tcp/80").to_bytes() + b"\xa5\x03" + bytes([len(peer)]) + peer + b"\xa2\x02"
    assert p2pd.address_bytes(f"/ip4/10.0.0.1/tcp/80/p2p/{name}/p2p-circuit") == wanted


@pytest.mark.asyncio
async def test_the_daemon_takes_a_relay_for_an_address() -> None:
    """The bytes that hivemind makes of it would be refused before anything is dialled."""
    relay = p2pd.address_bytes(f"/ip4/127.0.0.1/tcp/9/p2p/{NAMES[1]}/p2p-circuit")
    assert relay is not None
    daemon = await Daemon.launch({"noListenAddrs": 1, "relay": 1}, 30.0, stop_s=0.0)
    try:
        with pytest.raises(NetworkError, match="error opening hop stream to relay: failed to dial"):
            await daemon.connect(NAMES[0], [relay], 10.0)
    finally:
        await daemon.stop()


@pytest.mark.asyncio
async def test_who_is_no_relay_does_not_read_the_table_of_networks() -> None:
    """It is most of what a daemon costs at its start, and nearly half of its memory."""
    daemons = [await Daemon.launch({"noListenAddrs": 1, "relay": relay}, 30.0, stop_s=0.0) for relay in (0, 1)]
    try:
        await until(lambda: 1.5 * resident_bytes(daemons[0].pid) < resident_bytes(daemons[1].pid))
    finally:
        for daemon in daemons:
            await daemon.stop()


@pytest.mark.parametrize(
    "text", ["", "/", "127.0.0.1:80", "/ip4/1.2.3/tcp/1", "/ip4/1.2.3.4/tcp/70000", "/ip4/1.2.3.4/tcp", "/onion/x:1"]
)
def test_what_is_no_address_gives_none(text: str) -> None:
    assert p2pd.address_bytes(text) is None


@pytest.mark.parametrize("name", NAMES)
def test_requests_are_the_bytes_that_hivemind_makes_of_them(name: str) -> None:
    peer, addresses = PeerID.from_base58(name).to_bytes(), [Multiaddr(text).to_bytes() for text in ADDRESSES]
    assert p2pd.peer_bytes(name) == peer
    connect = p2pd_pb2.Request(
        type=p2pd_pb2.Request.CONNECT, connect=p2pd_pb2.ConnectRequest(peer=peer, addrs=addresses, timeout=3)
    )
    opens = p2pd_pb2.Request(
        type=p2pd_pb2.Request.STREAM_OPEN,
        streamOpen=p2pd_pb2.StreamOpenRequest(peer=peer, proto=["/swarmflow/status"], timeout=1),
    )
    for request, mine in (
        (connect, p2pd.connect_request(name, addresses, 3.2)),
        (opens, p2pd.stream_request(name, "/swarmflow/status", 0.2)),
    ):
        size = mine.index(request.SerializeToString())  # the length before it, as a varint
        assert 0 < size <= 2
        assert len(mine) == size + request.ByteSize()


async def answered(data: bytes) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    await p2pd.read_response(reader)


@pytest.mark.asyncio
async def test_a_response_says_yes_or_why_not() -> None:
    fine = p2pd_pb2.Response(
        type=p2pd_pb2.Response.OK, streamInfo=p2pd_pb2.StreamInfo(peer=b"p", addr=b"a", proto="/x")
    )
    refused = p2pd_pb2.Response(
        type=p2pd_pb2.Response.ERROR, error=p2pd_pb2.ErrorResponse(msg="no  route\n" + "x" * 300)
    )
    await answered(bytes([fine.ByteSize()]) + fine.SerializeToString())
    size = refused.ByteSize()
    with pytest.raises(NetworkError, match=r"^no route x{300}$"):
        await answered(bytes([size & 0x7F | 0x80, size >> 7]) + refused.SerializeToString())


@pytest.mark.asyncio
@pytest.mark.parametrize("data", [b"\xff" * 20, b"\x02\x0d\x00", b"\x03\x08\x80\x80", b"\x01\x80"])
async def test_garbage_from_the_daemon_is_one_line(data: bytes) -> None:
    with pytest.raises(NetworkError, match="something else than a response"):
        await answered(data)


def test_the_daemon_is_found_and_asked_without_loading_hivemind_or_torch() -> None:
    program = (
        "import sys; from swarmflow.runtime.operations import status;"
        "from swarmflow.runtime.transport import daemon, p2pd; p2pd.program();"
        "print([name for name in ('hivemind', 'torch', 'numpy', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
