"""Whether a trainer can be reached at the addresses that it announces: joining processes try and report them."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Mapping, Sequence

import msgspec

from swarmflow.clean_text import clean
from swarmflow.core.protocol.types import ProcessId
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.transport.addresses import lasting, multiaddr, outgoing_addresses, parts_of, peer_of
from swarmflow.runtime.transport.invite import Invite
from swarmflow.runtime.transport.requests import Arguments, Requests

log = logging.getLogger("swarmflow")

TIMEOUT_S = 5.0
ADDRESSES_MAX = 16
_REASON_CHARS_MAX = 120
_GREETING = b"\x13/multistream/1.0.0\n"  # the first bytes of every libp2p process on a connection
_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")


class Announced:
    """The `--announce` addresses of this process. Success and failure of each are logged once."""

    def __init__(self, given: Sequence[str]) -> None:
        """given: HOST:PORT or multiaddrs, as the user wrote them. Raises NetworkError for any other text."""
        self._given = {multiaddr(text, listening=False): text for text in given[:ADDRESSES_MAX]}
        self._reported: set[tuple[str, bool]] = set()

    def serve(self, requests: Requests) -> None:
        """Serve the addresses for other processes to try, and receive their results."""
        requests.serve("announced", self._announced)
        requests.serve("reached", self._reached)

    def results(self, who: str, tried: Arguments) -> list[tuple[int, str]]:
        """Return log lines (level, text) for what a process tried: address -> why it failed, "" where it did not."""
        lines: list[tuple[int, str]] = []
        for address, given in self._given.items():
            reason = tried.get(address)
            if not isinstance(reason, str) or (address, not reason) in self._reported:
                continue
            self._reported.add((address, not reason))
            if not reason:
                lines.append((logging.INFO, f"--announce {given}: process {who[-6:]} reaches it"))
                continue
            short = clean(" ".join(reason.split()))[:_REASON_CHARS_MAX]
            failed = f"--announce {given} cannot be reached by process {who[-6:]} ({short})"
            advice = "open and forward the port, or correct the address; others may be unable to join"
            lines.append((logging.WARNING, f"{failed}: {advice}"))
        return lines

    async def _announced(self, sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        return [msgspec.json.encode(list(self._given))]

    async def _reached(self, sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        for level, text in self.results(sender.name, arguments):
            log.log(level, "%s", text)
        return []


async def report_reach(session: Session, invite: Invite, leader: ProcessId) -> None:
    """Try what the trainers of an invite announce, and tell each of them what came of it; those that answer."""
    for trainer in trainers_of(session, invite, leader):
        try:
            answer = await session.requests.ask(trainer, "announced")
            addresses = msgspec.json.decode(answer[0], type=list[str])[:ADDRESSES_MAX]
            tried = await asyncio.gather(*(try_address(address) for address in addresses))
            results: Mapping[str, str | None] = dict(zip(addresses, tried, strict=True))
            if known := {address: reason for address, reason in results.items() if reason is not None}:
                await session.requests.ask(trainer, "reached", dict(known))
        except (NetworkError, *UNDECODABLE, IndexError) as error:
            log.debug("what trainer %s announces was not tried: %s", trainer.name[-6:], error)


def trainers_of(session: Session, invite: Invite, leader: ProcessId) -> list[ProcessId]:
    """Return the leader and the other trainers of an invite, whose addresses are set in the links."""
    invited = lasting(invite.trainers)
    names = {peer_of(address) for address in invited} - {leader.name, session.me.name}
    for name in names:
        session.links.set_addresses(name, [text for text in invited if peer_of(text) == name])
    return [leader, *(ProcessId(name, 0) for name in sorted(names))]


async def try_address(text: str, timeout_s: float = TIMEOUT_S) -> str | None:
    """Return why no libp2p process answers at a multiaddr, "" where one does; None for an address not of plain TCP.

    Connects by TCP and reads the greeting: libp2p itself dials no address of a process that it is connected to.
    """
    try:
        parts = parts_of(text)
    except NetworkError:
        return None
    host = next((parts[name] for name in _HOSTS if name in parts), None)
    if host is None or "tcp" not in parts or "p2p-circuit" in parts:
        return None
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, int(parts["tcp"]))
            greeting = await reader.readexactly(len(_GREETING))
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except (asyncio.IncompleteReadError, ValueError):  # ValueError: of a host name that no resolver accepts
        return "what answers there is no libp2p process"
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    finally:
        if writer is not None:
            writer.transport.abort()
    return "" if greeting == _GREETING else "what answers there is no libp2p process"


def local_addresses(listening: Sequence[str], name: str) -> list[str]:
    """Return where processes of this machine and its network reach a process that announces other addresses.

    listening: multiaddrs. An address of all interfaces stands for that of the default route and the loopback one.
    """
    found: list[str] = []
    for text in listening:
        parts = parts_of(text)
        host, port = parts.get("ip4"), parts.get("tcp", "0")
        if host is None or port == "0":
            continue
        hosts = [*outgoing_addresses(), "127.0.0.1"] if ipaddress.ip_address(host).is_unspecified else [host]
        found += [f"/ip4/{one}/tcp/{port}/p2p/{name}" for one in hosts]
    return found
