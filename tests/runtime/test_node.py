"""Starting a node: what it offers, and one clear line for everything that can be wrong."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hivemind.dht.node import DHTNode
from hivemind.p2p import P2P

from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.messages.checks import checks_of
from swarmflow.core.protocol.types import ADDRESSES_MAX, Member, Plan, ProcessId
from swarmflow.errors import NetworkError
from swarmflow.runtime.transport.addresses import (
    accepts_connection,
    announced_addresses,
    check_port_free,
    dialable,
    lasting,
    multiaddr,
    outgoing_addresses,
    peer_of,
)
from swarmflow.runtime.transport.daemon import Daemon, remove_stale_sockets
from swarmflow.runtime.transport.identity import IdentityLock, is_signed_by, load_identity
from swarmflow.runtime.transport.node import Node, refusal
from swarmflow.system import resident_bytes
from tests.runtime.nodes import started

NAME = "QmZfUuDNiqPfxiThFLaXZwmynp2jigFaR9jSEbXbU1GUWX"
NO_PROCESSES = (
    "x",
    "",
    f"/dns4/..a/tcp/1/p2p/{NAME}",
    f"/dns4/a./tcp/1/p2p/{NAME}",
    f"/dns4/{300 * 'a'}/tcp/1/p2p/{NAME}",
    f"/ip4/1.2.3.4/tcp/x/p2p/{NAME}",
    "/ip4/1.2.3.4/tcp/1",
    f"/ip4/1.2.3.4/tcp/1/p2p/Qm{20 * 'A'}",
    f"/dns4/ü/p2p/{NAME}",
    f"/dns4/{250 * 'a.'}a/tcp/1/p2p/{NAME}",
    f"/dns4/a b/tcp/1/p2p/{NAME}",
    "/dns4/\udcff/tcp/1",
)


async def fails(folder: Path, *, listen: str = "127.0.0.1:0", bootstrap: tuple[str, ...] = ()) -> str:
    with pytest.raises(NetworkError) as caught:
        await Node.start(identity_path=folder / "failing.id", listen=[listen], bootstrap=bootstrap)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.asyncio
async def test_a_node_keeps_its_name_and_port_over_a_restart(tmp_path: Path) -> None:
    node = await Node.start(identity_path=tmp_path / "id")
    (address,) = node.addresses()
    assert peer_of(address) == node.name == load_identity(tmp_path / "id").name
    await node.stop()
    port = address.split("/")[4]
    again = await Node.start(identity_path=tmp_path / "id", listen=[f"127.0.0.1:{port}"], bootstrap=[address])
    assert again.addresses() == [address]
    await again.stop()


@pytest.mark.asyncio
async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async with started(tmp_path, 1) as (node,):
        port = node.addresses()[0].split("/")[4]
        assert f"127.0.0.1:{port}" in await fails(tmp_path, listen=f"127.0.0.1:{port}")


class LogWaiter(logging.Handler):
    """Is set when something is logged that has these words."""

    def __init__(self, fragment: str) -> None:
        super().__init__(logging.DEBUG)
        self.fragment, self.event = fragment, asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.fragment in record.getMessage():
            self.event.set()


@pytest.mark.asyncio
async def test_a_node_waits_for_one_that_is_about_to_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A daemon takes connections a moment before its process answers in the DHT."""
    handler = LogWaiter("nobody answers in the DHT yet")
    caplog.set_level(logging.DEBUG, "swarmflow.runtime.transport.node")
    logging.getLogger("swarmflow.runtime.transport.node").addHandler(handler)
    try:
        early = await P2P.create(dht_mode="server")
        address = str((await early.get_visible_maddrs())[0])
        joining = asyncio.create_task(Node.start(identity_path=tmp_path / "id", bootstrap=[address]))
        async with asyncio.timeout(30):
            await handler.event.wait()
            dht = await DHTNode.create(p2p=early)
            node = await joining
        assert early.peer_id in node.dht.protocol.routing_table.peer_id_to_uid
        await node.stop()
        await dht.shutdown()
        await early.shutdown()
    finally:
        logging.getLogger("swarmflow.runtime.transport.node").removeHandler(handler)


@pytest.mark.asyncio
async def test_a_network_that_is_gone_is_dialled_again_only_when_a_port_of_it_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each dial in vain libp2p would refuse the next ones for longer."""
    dials, tries = 0, 0
    dial, try_port, tried = Daemon.connect, accepts_connection, asyncio.Event()

    async def counted_dial(daemon: Daemon, name: str, addresses: Sequence[bytes], timeout_s: float) -> None:
        nonlocal dials
        dials += 1
        await dial(daemon, name, addresses, timeout_s)

    async def counted_try(maddr: str) -> bool:
        nonlocal tries
        tries += 1
        if tries == 10:
            tried.set()
        return await try_port(maddr)

    monkeypatch.setattr(Daemon, "connect", counted_dial)
    monkeypatch.setattr("swarmflow.runtime.transport.node.accepts_connection", counted_try)
    monkeypatch.setattr("swarmflow.runtime.transport.node._RETRY_S", 0.1)
    first = await Node.start(identity_path=tmp_path / "first.id")
    (address,) = first.addresses()
    await first.stop()
    joining = asyncio.create_task(Node.start(identity_path=tmp_path / "id", bootstrap=[address], patient=True))
    await tried.wait()
    assert dials == 1
    first = await Node.start(identity_path=tmp_path / "first.id", listen=[address.partition("/p2p/")[0]])
    node = await joining
    await node.stop()
    await first.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/ip4/127.0.0.1/tcp/1", False),
        ("/dns4/localhost/tcp/1", False),
        ("/ip4/127.0.0.1/udp/1/quic-v1", True),
        (f"/ip4/127.0.0.1/tcp/1/p2p/{NAME}/p2p-circuit", True),
    ],
)
async def test_a_port_accepts_or_cannot_be_tried(address: str, expected: bool) -> None:
    assert await accepts_connection(address) == expected


@pytest.mark.asyncio
async def test_an_address_where_nobody_answers_is_named(tmp_path: Path) -> None:
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{NAME}"
    assert address in await fails(tmp_path, bootstrap=(address,))


@pytest.mark.asyncio
async def test_another_process_at_the_address_is_not_taken_for_the_one_named(tmp_path: Path) -> None:
    async with started(tmp_path, 1) as (node,):
        address = node.addresses()[0].replace(node.name, NAME)
        assert address in await fails(tmp_path, bootstrap=(address,))


@pytest.mark.asyncio
async def test_one_reachable_address_is_enough(tmp_path: Path) -> None:
    async with started(tmp_path, 1) as (node,):
        dead = f"/ip4/127.0.0.1/tcp/1/p2p/{NAME}"
        newcomer = await Node.start(identity_path=tmp_path / "new", bootstrap=[dead, *node.addresses()])
        await newcomer.stop()


@pytest.mark.asyncio
async def test_an_identity_is_held_by_one_process(tmp_path: Path) -> None:
    with IdentityLock(tmp_path / "failing.id"):
        assert "in use" in await fails(tmp_path)


def test_an_identity_on_a_file_system_without_locks_is_not_said_to_be_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("swarmflow.runtime.transport.identity.fcntl.flock", refuse)
    with pytest.raises(NetworkError, match=r"id\.lock cannot be locked \(No locks available\)"):
        IdentityLock(tmp_path / "id")


def test_a_damaged_identity_is_set_aside_and_its_copy_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "id"
    name, content = load_identity(path).name, path.read_bytes()
    for at in (1, 3, 40, len(content) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[at] ^= 1
        path.chmod(0o600)
        path.write_bytes(damaged)
        assert load_identity(path).name == name
        assert path.read_bytes() == content
    path.unlink()  # as a process leaves it that is killed when it has set a damaged one aside
    assert load_identity(path).name == name
    assert path.read_bytes() == content
    path.unlink()
    (tmp_path / "id.copy").unlink()
    path.write_bytes(b"\x12\x02no")
    assert load_identity(path).name not in ("", name), "a new one, since nobody has the former"
    assert len(list(tmp_path.glob("id.corrupt*"))) == 6


@pytest.mark.parametrize("spoilt", [b"", b"\x08\x00", None], ids=["empty", "cut short", "another's"])
def test_a_copy_of_an_identity_that_is_none_is_made_again(spoilt: bytes | None, tmp_path: Path) -> None:
    path, copy = tmp_path / "id", tmp_path / "id.copy"
    name = load_identity(path).name
    if spoilt is None:
        load_identity(tmp_path / "other")
        spoilt = (tmp_path / "other").read_bytes()
    copy.unlink()
    copy.write_bytes(spoilt)
    assert load_identity(path).name == name
    assert copy.read_bytes() == path.read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o400
    path.unlink()
    path.write_bytes(b"")
    assert load_identity(path).name == name


def test_a_signature_is_checked_by_the_name_alone(tmp_path: Path) -> None:
    key, other = load_identity(tmp_path / "id"), load_identity(tmp_path / "other")
    signature = key.sign(b"this")
    assert is_signed_by(key.name, b"this", signature)
    assert not is_signed_by(key.name, b"that", signature)
    assert not is_signed_by(other.name, b"this", signature)
    assert not is_signed_by(key.name, b"this", signature[:-1])
    for name in ("", "x", NAME, key.name[:-1], f"{key.name}1", "1" + key.name, "\N{SNOWMAN}"):  # NAME: of an RSA key
        assert not is_signed_by(name, b"this", signature)


@pytest.mark.asyncio
async def test_an_identity_file_is_private_and_names_what_hivemind_names(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "id"
    key = load_identity(path)
    assert path.stat().st_mode & 0o777 == 0o400
    assert path.parent.stat().st_mode & 0o777 == 0o700
    p2p = await P2P.create(identity_path=str(path))
    assert p2p.peer_id.to_base58() == key.name
    await p2p.shutdown()


def test_the_daemon_of_a_killed_process_ends_and_ctrl_c_does_not_reach_it(tmp_path: Path) -> None:
    # A program with a loop of its own: it is killed.
    script = (
        "import asyncio, sys; from pathlib import Path; from swarmflow.runtime.transport.node import Node\n"
        "async def main():\n"
        "    node = await Node.start(identity_path=Path(sys.argv[1]))\n"
        "    print(node.daemon_pid, flush=True)\n"
        "    await node.died()\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[2]
    arguments = [sys.executable, "-c", script, str(tmp_path / "id")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=root, start_new_session=True) as process:
        assert process.stdout is not None
        daemon_pid = int(process.stdout.readline())
        assert os.getpgid(daemon_pid) != os.getpgid(process.pid)
        process.kill()
    deadline_s = time.monotonic() + 10.0
    while resident_bytes(daemon_pid) and time.monotonic() < deadline_s:
        os.sched_yield()
    assert not resident_bytes(daemon_pid)  # where nobody reaps it, the number stays


@pytest.mark.asyncio
async def test_the_daemons_death_is_noticed_and_the_node_still_stops(tmp_path: Path) -> None:
    node = await Node.start(identity_path=tmp_path / "id")
    os.kill(node.daemon_pid, signal.SIGKILL)
    assert await asyncio.wait_for(node.died(), 2.0) == "the network daemon p2pd ended with code -9"
    await asyncio.wait_for(node.stop(), 5.0)


def test_a_wrong_clock_is_told_with_the_difference() -> None:
    fragment = "local time must be within 3 seconds  of others(local: 1000.00000, peer: 1007.25000)"
    assert "7.2 s behind the swarm's" in refusal(fragment)
    assert "7.2 s ahead of" in refusal(fragment.replace("1000.0", "1014.5"))
    assert refusal("Peer X\n can't access this node").endswith("Peer X can't access this node")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:7000", "/ip4/127.0.0.1/tcp/7000"),
        ("[::1]:0", "/ip6/::1/tcp/0"),
        ("localhost:80", "/ip4/127.0.0.1/tcp/80"),
        ("/ip4/1.2.3.4/udp/5/quic-v1", "/ip4/1.2.3.4/udp/5/quic-v1"),
    ],
)
def test_addresses_are_understood(text: str, expected: str) -> None:
    assert multiaddr(text, listening=True) == expected


def test_a_name_is_announced_as_a_name() -> None:
    assert multiaddr("example.org:80", listening=False) == "/dns4/example.org/tcp/80"
    assert multiaddr("example.org.:80", listening=False) == "/dns4/example.org/tcp/80"


@pytest.mark.parametrize("text", ["", "7000", "host:", ":7000", "host:99999", "host:-1", "/ip4/1.2.3", "/tcp/x", "h:٣"])
def test_other_addresses_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(NetworkError) as caught:
        multiaddr(text, listening=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a..b:1", "-:1", "/dns4/..a/tcp/1", "/dns4/a./tcp/1", f"{300 * 'a'}:1"])
@pytest.mark.parametrize("listening", [True, False])
def test_a_host_that_is_no_name_is_refused_in_one_line(text: str, listening: bool) -> None:
    """The parser of multiaddrs looks at names only when they are read."""
    with pytest.raises(NetworkError) as caught:
        multiaddr(text, listening=listening)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", NO_PROCESSES)
def test_only_what_leads_to_a_process_lasts(text: str) -> None:
    good = f"/dns4/example.org/tcp/1/p2p/{NAME}"
    assert lasting((text, good, text)) == (good,)
    assert [str(address) for address in dialable([text, good], NAME)][-1] == "/dns4/example.org/tcp/1"


def test_a_port_of_zero_cannot_be_announced() -> None:
    with pytest.raises(NetworkError, match="port"):
        multiaddr("1.2.3.4:0", listening=False)


def test_of_a_host_with_many_interfaces_the_addresses_that_reach_farthest_are_told() -> None:
    own = [f"/ip4/127.0.0.1/tcp/1/p2p/{NAME}", f"/ip6/fe80::1/tcp/1/p2p/{NAME}"]
    own += [f"/ip4/10.0.{number}.1/tcp/1/p2p/{NAME}" for number in range(70)]
    far = [f"/ip4/8.8.4.4/tcp/1/p2p/{NAME}", f"/dns4/example.org/tcp/1/p2p/{NAME}"]
    out = [f"/ip4/{host}/tcp/1/p2p/{NAME}" for host in outgoing_addresses()]
    named = announced_addresses((*own, *out, *far))
    assert len(named) == ADDRESSES_MAX
    assert {*far, *out} <= set(named)
    assert not {*own[:2]} & set(named)
    assert announced_addresses(own[:3]) == tuple(own[:3]), "where there are few, as they are"
    can_be = checks_of(Plan(1, 1))
    assert can_be.wrong(Join("peer", "1", "run", Member(ProcessId(NAME, 1), 0, 1, named))) is None
    assert can_be.wrong(Join("peer", "1", "run", Member(ProcessId(NAME, 1), 0, 1, (*named, named[0])))) is not None


def test_only_addresses_that_lead_to_the_process_are_dialled() -> None:
    other = NAME[:-1] + "Y"
    relay = f"/ip4/5.6.7.8/tcp/1/p2p/{other}/p2p-circuit/p2p/{NAME}"
    offered = ["rubbish", f"/ip4/1.2.3.4/tcp/1/p2p/{NAME}", f"/ip4/1.2.3.4/tcp/2/p2p/{other}", "/ip4/1.2.3.4/tcp/3"]
    assert [str(address) for address in dialable([*offered, relay, f"/p2p/{NAME}"], NAME)] == [
        "/ip4/1.2.3.4/tcp/1",
        "/ip4/1.2.3.4/tcp/3",
        f"/ip4/5.6.7.8/tcp/1/p2p/{other}/p2p-circuit",
    ]


def test_a_port_is_checked_before_the_daemon_shares_it() -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        maddr = f"/ip4/127.0.0.1/tcp/{holder.getsockname()[1]}"
        with pytest.raises(NetworkError):
            check_port_free(maddr)
    check_port_free(maddr)


def test_sockets_that_nobody_listens_on_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    paths = [tmp_path / f"hivemind-p2pd-{name}.sock" for name in ("dead", "young", "alive")]
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as young:
        dead.bind(str(paths[0]))
        young.bind(str(paths[1]))
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(paths[2]))
        alive.listen()
        for path in (paths[0], paths[2]):
            os.utime(path, (1.0, 1.0))
        remove_stale_sockets()
    assert [path.exists() for path in paths] == [False, True, True]
