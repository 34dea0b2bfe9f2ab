"""Addresses as users write them (HOST:PORT or a multiaddr) and as libp2p wants them."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Iterable, Sequence

from hivemind.utils.multiaddr import Multiaddr

from swarmflow.core.protocol.types import ADDRESSES_MAX
from swarmflow.errors import NetworkError, PortTakenError
from swarmflow.runtime.transport.invite import is_address

_PROBE_TIMEOUT_S = 3.0
_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")


def multiaddr(text: str, *, listening: bool) -> str:
    """Return `HOST:PORT` (an IPv6 address in brackets, or a host name) as a multiaddr; a multiaddr is only checked.

    listening: the address is one to bind to, so a host name is resolved and port 0 (any) is allowed.
    Raises NetworkError when the text is neither.
    """
    if text.startswith("/"):
        return str(_parsed(text))
    host, colon, port_text = text.rpartition(":")
    if not colon or not host or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise NetworkError(f"{text!r} is no address: write HOST:PORT, or a multiaddr such as /ip4/0.0.0.0/tcp/7000")
    if not listening and int(port_text) == 0:
        raise NetworkError(f"{text!r} cannot be announced: give the port that others reach")
    return f"{_host(host.strip('[]'), text, listening)}/tcp/{int(port_text)}"


def _host(host: str, text: str, listening: bool) -> str:
    """Return the host as a multiaddr. text: what the user wrote, for the error."""
    try:
        return f"/ip{ipaddress.ip_address(host).version}/{host}"
    except ValueError:
        if not listening:
            return str(_parsed(f"/dns4/{host.removesuffix('.')}"))  # a multiaddr has no dot at the end of a name
    try:
        resolved = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NetworkError(f"cannot listen on {text!r}: the host name is not known ({error})") from None
    return f"/ip4/{resolved[0][4][0]}"


def _parsed(text: str) -> Multiaddr:
    try:
        address = Multiaddr(text)
        list(address.items())  # host names are checked only when they are parsed
        return address
    except Exception as error:  # the parser passes on the errors of its codecs, which have no common class
        raise NetworkError(f"{text!r} is no multiaddr: {' '.join(str(error).split())}") from None


def peer_of(maddr: str) -> str:
    """Return the libp2p name at the end of a multiaddr.

    Raises NetworkError when the text is no multiaddr or does not end in `/p2p/NAME`.
    """
    items = list(_parsed(maddr).items())
    if not items or items[-1][0].name != "p2p" or not items[-1][1]:
        raise NetworkError(f"{maddr!r} names no process: it must end in /p2p/NAME")
    return str(items[-1][1])


def lasting(maddrs: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses that name a process and fit in an invite; drop the others.

    Addresses received from the network are kept in a file that is read at each start, and must not prevent the start.
    """
    return tuple(text for text in maddrs if is_address(text) and _names_process(text))


def _names_process(maddr: str) -> bool:
    try:
        return bool(peer_of(maddr))
    except NetworkError:
        return False


def parts_of(maddr: str) -> dict[str, str]:
    """Return protocol -> value of a multiaddr. Raises NetworkError when the text is not one."""
    return {protocol.name: str(value) for protocol, value in _parsed(maddr).items()}


def announced_addresses(maddrs: Sequence[str]) -> tuple[str, ...]:
    """Return the own addresses to announce: at most ADDRESSES_MAX, those that most other processes can reach.

    A machine with many interfaces has more addresses than another process would try.
    """
    return tuple(maddrs if len(maddrs) <= ADDRESSES_MAX else sorted(maddrs, key=_reachability_rank)[:ADDRESSES_MAX])


def _reachability_rank(maddr: str) -> int:
    """Return the rank of an own address: 0 public, name, relay; 1 default route; 2 other; 3 loopback, link-local."""
    parts = parts_of(maddr)
    host = parts.get("ip4", parts.get("ip6"))
    if host is None or "p2p-circuit" in parts:
        return 0  # a name, or a relay
    address = ipaddress.ip_address(host)
    if address.is_loopback or address.is_link_local:
        return 3
    return 0 if address.is_global else 1 if host in outgoing_addresses() else 2


def outgoing_addresses() -> list[str]:
    """Return this machine's IPv4 address on the default route; an empty list without a route. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [str(probe.getsockname()[0])]


def dialable(maddrs: Sequence[str], name: str, most: int = ADDRESSES_MAX) -> list[Multiaddr]:
    """Return those of the first `most` addresses that are well-formed and lead to `name`, without `/p2p/NAME`.

    Others are dropped silently, because they were received from the network and one good address is enough.
    """
    good: list[Multiaddr] = []
    for text in maddrs[:most]:
        try:
            address = _parsed(text)
            suffix = Multiaddr(f"/p2p/{peer_of(text)}") if "p2p" in address else None
        except NetworkError:
            continue
        if suffix is None:
            good.append(address)
        elif suffix["p2p"] == name and len(list(address.items())) > 1:
            good.append(address.decapsulate(suffix))
    return good


def check_port_free(maddr: str) -> None:
    """Raise PortTakenError when another process listens on this address, NetworkError when it cannot be bound to.

    libp2p listens with SO_REUSEPORT: without this check two processes would share the port and take each other's
    connections.
    """
    address = _parsed(maddr)
    parts = {protocol.name: value for protocol, value in address.items()}
    host = parts.get("ip4") or parts.get("ip6")
    port_text = parts.get("tcp") or parts.get("udp")
    if host is None or port_text is None or port_text == "0":
        return
    family = socket.AF_INET if "ip4" in parts else socket.AF_INET6
    with socket.socket(family, socket.SOCK_STREAM if "tcp" in parts else socket.SOCK_DGRAM) as probe:
        if "tcp" in parts:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((host, int(port_text)))
        except OSError as error:
            where = f"{host}:{port_text}"
            kind = PortTakenError if error.errno == errno.EADDRINUSE else NetworkError
            raise kind(f"cannot listen on {where}: {error.strerror}; choose another --listen") from None


async def accepts_connection(maddr: str) -> bool:
    """Return whether a TCP port accepts a connection; True for an address of another kind, which cannot be tried."""
    parts = parts_of(maddr)
    host = next((parts[kind] for kind in _HOSTS if kind in parts), None)
    if host is None or "tcp" not in parts or "p2p-circuit" in parts:
        return True
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, int(parts["tcp"]))
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True
