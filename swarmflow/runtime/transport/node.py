"""A process's node in the network: its identity, its libp2p daemon, and its node of hivemind's DHT."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import ValidationError
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure
from hivemind.utils.multiaddr import Multiaddr

from swarmflow.activity import doing
from swarmflow.errors import NetworkError
from swarmflow.runtime.transport.addresses import (
    accepts_connection,
    announced_addresses,
    check_port_free,
    dialable,
    multiaddr,
    peer_of,
)
from swarmflow.runtime.transport.daemon import Daemon
from swarmflow.runtime.transport.door import Caller, address_of
from swarmflow.runtime.transport.identity import IdentityKey, IdentityLock, load_identity
from swarmflow.runtime.transport.p2pd import address_bytes
from swarmflow.runtime.transport.record_search import plausible
from swarmflow.runtime.transport.record_storage import RecordStorage
from swarmflow.runtime.transport.records import OwnedRecords

log = logging.getLogger(__name__)

T = TypeVar("T")
StreamHandler = Callable[[Caller, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

# A killed predecessor's daemon keeps its port for up to two seconds.
PORT_WAIT_S = 3.0
PORT_RETRY_S = 0.2
BOOTSTRAP_TIMEOUT_S = 10.0
_RETRY_S = 1.0  # between attempts to reach the network
_DHT_START_TIMEOUT_S = 10.0
_NEIGHBOURS_TIMEOUT_S = 3.0
_NAMED_MAX = 3  # addresses in a line about what takes long
LOOPBACK = ("/ip4/127.", "/ip6/::1/")
CONNECTIONS_LOW, CONNECTIONS_HIGH = 2048, 4096  # p2pd closes connections above the high mark, to the low one
_CLOCKS = re.compile(r"local: ([\d.]+), peer: ([\d.]+)")  # two clocks in s, in an error of hivemind's


class Node:
    """The running node, made by `start`."""

    def __init__(
        self, key: IdentityKey, records: OwnedRecords, daemon: Daemon, p2p: P2P, dht: DHTNode, resources: AsyncExitStack
    ) -> None:
        self.key = key
        self.records = records  # which of them this process stores, forwards and finds
        self.name = key.name  # its libp2p name (base58), which `key` proves
        self.dht = dht
        self._daemon = daemon
        self._p2p = p2p
        self._resources = resources
        self._addresses: list[str] = []  # multiaddrs with /p2p/NAME, as last refreshed
        self._handlers: dict[str, StreamHandler] = {}  # by protocol
        self.listening: tuple[str, ...] = ()  # multiaddrs, as `start` was asked for them; a port may be 0

    @classmethod
    async def start(
        cls,
        *,
        identity_path: Path,
        listen: Sequence[str] = ("127.0.0.1:0",),
        announce: Sequence[str] = (),
        bootstrap: Sequence[str] = (),
        startup_timeout_s: float = 60.0,
        client_mode: bool = False,
        public: bool | None = None,
        may_be_alone: bool = False,
        patient: bool = False,
    ) -> Node:
        """Join the network of the bootstrap addresses, or begin one when there are none.

        listen, announce: HOST:PORT or multiaddrs. bootstrap: multiaddrs that end in /p2p/NAME; one reachable one is
        enough, and those of this process are skipped. client_mode: use the DHT without storing for others. public: True
        when every process can dial this one, False when none can, None: p2pd finds out. may_be_alone: begin a network
        where no bootstrap address answers. patient: wait, for as long as it takes, until one answers.

        Raises NetworkError, one line, when an identity, address or port cannot be used, no bootstrap address answers,
        the daemon does not start, or this machine's clock is off by more than the 3 s that hivemind's DHT allows.
        """
        listening = [multiaddr(text, listening=True) for text in listen]
        announced = [multiaddr(text, listening=False) for text in announce]
        entries = {text: peer_of(text) for text in bootstrap}
        asyncio.get_running_loop().set_exception_handler(_on_stray_exception)
        async with AsyncExitStack() as resources:
            resources.enter_context(IdentityLock(identity_path))
            key = load_identity(identity_path)
            records = OwnedRecords(key)
            entries = {text: name for text, name in entries.items() if name != key.name}
            options = _daemon_options(identity_path, listening, announced, list(entries), client_mode, public)
            with doing(f"waiting for the port of {', '.join(listen)}"):
                await _wait_for_ports(listening)
            with doing("starting the network daemon (p2pd)"):
                daemon = await Daemon.launch(options, startup_timeout_s)
                resources.push_async_callback(daemon.stop)
                p2p = await _attach(daemon, startup_timeout_s)
                resources.push_async_callback(p2p.shutdown)
            with doing(f"connecting to the run at {_some(bootstrap)}"):
                reached = await _reach(daemon, entries, may_be_alone, patient)
            with doing(f"joining the DHT by way of {_some(reached)}" if reached else "beginning a DHT"):
                dht = await _join(p2p, records, reached, client_mode, patient)
            node = cls(key, records, daemon, p2p, dht, resources)
            node.listening = tuple(listening)
            await node.refresh_addresses()
            node._resources = resources.pop_all()
        return node

    async def open_stream(
        self, name: str, protocol: str, maddrs: Sequence[str], timeout_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a stream to a process that serves `protocol`, dialled at these addresses when it is not connected yet.

        Raises NetworkError when it cannot be reached within twice `timeout_s`, or does not serve the protocol.
        """
        if maddrs:
            await self._daemon.connect(name, _packed(dialable(maddrs, name)), timeout_s)
        return await self._daemon.open_stream(name, protocol, timeout_s)

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        """Call `handler(caller, reader, writer)` for every stream that another process opens for `protocol`.

        The caller's name is proven by the connection. The handler owns the stream and closes the writer. A second
        handler for one protocol replaces the first.
        """

        async def handle(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            caller = Caller(info.peer_id.to_base58(), address_of(str(info.addr)))
            await self._handlers[protocol](caller, reader, writer)

        registered = protocol in self._handlers
        self._handlers[protocol] = handler
        if not registered:
            await self._p2p.add_binary_stream_handler(protocol, handle)

    @property
    def daemon_pid(self) -> int:
        """The process ID of the daemon, whose memory and CPU time count as this process's."""
        return self._daemon.pid

    def addresses(self) -> list[str]:
        """Return the multiaddrs, each with /p2p/NAME, at which others may dial this process, as last refreshed."""
        return list(self._addresses)

    async def refresh_addresses(self) -> list[str]:
        """Ask the daemon for the addresses again: behind a NAT it finds some of them only after a while.

        Raises NetworkError.
        """
        own = [str(address) for address in await _answer(self._p2p.get_visible_maddrs(latest=True))]
        self._addresses = list(announced_addresses(sorted(own, key=lambda text: text.startswith(LOOPBACK))))
        return self.addresses()

    async def connections(self) -> dict[str, list[str]]:
        """Return the other ends of open connections: libp2p name -> multiaddrs, with /p2p-circuit for a relayed one.

        Which side has dialled is not known: a process dials from the port on which it listens. Raises NetworkError.
        """
        peers = await _answer(self._p2p.list_peers())
        found: dict[str, list[str]] = {}
        for peer in peers:
            found.setdefault(peer.peer_id.to_base58(), []).extend(str(address) for address in peer.addrs)
        return found

    async def died(self) -> str:
        """Wait until the daemon has ended, which leaves this process without a network, and return the reason."""
        return await self._daemon.died()

    async def stop(self) -> None:
        """Leave the network, end the daemon and release the identity."""
        # Not DHTNode.shutdown(): it asks the daemon, perhaps dead, to forget handlers that end with it anyway.
        self.dht.is_alive = False
        await self._resources.aclose()


def _on_stray_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore the error of hivemind's handler when a remote disconnects before its stream's first byte."""
    error = context.get("exception")
    if isinstance(error, asyncio.IncompleteReadError | ConnectionError):
        log.debug("a stream ended before it began: %s", error)
    else:
        log.error("%s: %r", context.get("message", "an error outside of any task"), error, exc_info=error)


def _some(addresses: Sequence[str]) -> str:
    """Return the first addresses, in words."""
    named = ", ".join(address.partition("/p2p/")[0] for address in addresses[:_NAMED_MAX])
    return named if len(addresses) <= _NAMED_MAX else f"{named} and {len(addresses) - _NAMED_MAX} more"


def _packed(addresses: Sequence[Multiaddr]) -> list[bytes]:
    """Return addresses as bytes. The daemon refuses a whole request for one relay in the form that hivemind uses."""
    return [address_bytes(str(address)) or address.to_bytes() for address in addresses]


async def _answer(question: Awaitable[T]) -> T:
    """Return what hivemind's client asks the daemon. Raises NetworkError where it does not answer."""
    try:
        return await question
    except (ControlFailure, OSError, EOFError) as error:
        raise NetworkError(f"the network daemon p2pd does not answer ({error})") from None


async def _attach(daemon: Daemon, timeout_s: float) -> P2P:
    """Return hivemind's client of a daemon that is running already."""
    try:
        async with asyncio.timeout(timeout_s):
            return await P2P.replicate(Multiaddr(f"/unix{daemon.socket_path}"))
    except (TimeoutError, OSError, EOFError):
        raise NetworkError("the network daemon p2pd started but does not answer") from None


async def _reach(daemon: Daemon, entries: Mapping[str, str], may_be_alone: bool, patient: bool) -> list[str]:
    """Connect to the bootstrap addresses, all at once, and if `patient` again and again; return those that answered."""

    async def connect(text: str, name: str, again: bool = False) -> NetworkError | None:
        # After a failure libp2p refuses to dial for 5 s, after k more for 5 + k² s, up to 5 minutes. So the network is
        # not dialled again before a port accepts a connection: else it would be found minutes after it is back.
        if again and not await accepts_connection(text):
            return NetworkError("no connection is accepted")
        try:
            await daemon.connect(name, _packed(dialable([text], name)), BOOTSTRAP_TIMEOUT_S)
        except NetworkError as error:
            return error
        return None

    errors = await asyncio.gather(*(connect(text, name) for text, name in entries.items()))
    if patient and entries and all(errors):
        log.info("waiting for the run: nobody answers at %s", ", ".join(entries))
        while all(errors):
            await asyncio.sleep(_RETRY_S)
            errors = await asyncio.gather(*(connect(text, name, again=True) for text, name in entries.items()))
    failures = [f"{text} ({error})" for text, error in zip(entries, errors, strict=True) if error is not None]
    if failures and len(failures) == len(entries) and not may_be_alone:
        raise NetworkError(f"nobody answers at {', '.join(failures)}: is the run alive and the invite current?")
    answered = {name for name, error in zip(entries.values(), errors, strict=True) if error is None}
    for (text, name), error in zip(entries.items(), errors, strict=True):
        if error is not None:
            # No warning where the process answers at another address: this one is for other processes.
            level = logging.DEBUG if name in answered else logging.WARNING
            log.log(level, "a bootstrap address does not answer: %s (%s)", text, error)
    return [text for text, error in zip(entries, errors, strict=True) if error is None]


async def _join(p2p: P2P, records: OwnedRecords, reached: Sequence[str], client_mode: bool, patient: bool) -> DHTNode:
    """Join the DHT; retry where a process that has just started accepts connections, but does not answer in the DHT."""
    dht = await DHTNode.create(
        p2p=p2p,
        client_mode=client_mode,
        record_validator=records,
        cache_locally=False,
        cache_nearest=0,
        reuse_get_requests=False,
    )
    # hivemind has no limits. Nobody asks for a cache, and a record that comes for it is one like all others.
    dht.protocol.storage = dht.protocol.cache = RecordStorage(records.is_checked)
    dht.protocol.call_find = plausible(dht.protocol.call_find)
    names = [PeerID.from_base58(peer_of(text)) for text in reached]
    deadline_s = time.monotonic() + _DHT_START_TIMEOUT_S
    try:
        while names and not any(
            await asyncio.gather(*(dht.protocol.call_ping(name, validate=True, strict=True) for name in names))
        ):
            if not patient and time.monotonic() > deadline_s:
                raise NetworkError(f"the swarm at {', '.join(reached)} does not answer")
            log.debug("nobody answers in the DHT yet")
            await asyncio.sleep(_RETRY_S)
    except ValidationError as error:
        raise NetworkError(refusal(str(error))) from None
    if names:
        await asyncio.wait({asyncio.create_task(dht.find_nearest_nodes([dht.node_id]))}, timeout=_NEIGHBOURS_TIMEOUT_S)
    return dht


def refusal(text: str) -> str:
    """Return the message for the user, from the error text of hivemind's DHT."""
    clocks = _CLOCKS.search(text)
    if clocks is None:
        return f"the swarm refused this process: {' '.join(text.split())}"
    behind_s = float(clocks[2]) - float(clocks[1])
    direction = "behind" if behind_s > 0 else "ahead of"
    return f"this machine's clock is {abs(behind_s):.1f} s {direction} the swarm's and may be 3 s off: set it (NTP)"


def _daemon_options(
    identity_path: Path,
    listening: Sequence[str],
    announced: Sequence[str],
    bootstrap: Sequence[str],
    client_mode: bool,
    public: bool | None,
) -> dict[str, str | int]:
    local_only = all(text.startswith(LOOPBACK) for text in listening)
    options: dict[str, str | int] = {
        "id": str(identity_path),
        "hostAddrs": ",".join(listening),
        "dhtClient" if client_mode else "dhtServer": 1,
        "autonat": int(not local_only),
        "natPortMap": int(not local_only and public is not True),
        # A relay reads a table of all networks of the internet: 0.35 s of the daemon's 0.52 s of CPU, 27 of its 61 MB.
        "relay": int(not (local_only and all(text.startswith(LOOPBACK) for text in bootstrap))),
        "connManager": 1,
        "connLo": CONNECTIONS_LOW,
        "connHi": CONNECTIONS_HIGH,
        "tls": 1,
    }
    if announced:
        options["announceAddrs"] = ",".join(announced)
    if bootstrap and not local_only and public is not True:
        # Only together with trusted relays: p2pd would otherwise use those of the public IPFS network.
        options["autoRelay"] = 1
        options["trustedRelays"] = ",".join(bootstrap)
    if public is not None:
        options["forceReachabilityPublic" if public else "forceReachabilityPrivate"] = 1
    return options


async def _wait_for_ports(listening: Sequence[str]) -> None:
    """Wait at most PORT_WAIT_S until all ports are free. Raises NetworkError when one is not."""
    try:
        async with asyncio.timeout(PORT_WAIT_S):
            for text in listening:
                await _wait_for_port(text)
    except TimeoutError:
        for text in listening:
            check_port_free(text)


async def _wait_for_port(text: str) -> None:
    while True:
        try:
            check_port_free(text)
        except NetworkError:
            await asyncio.sleep(PORT_RETRY_S)
        else:
            return
