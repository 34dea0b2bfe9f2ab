"""How many streams others may open here: by process, by the address that they come from, and in all.

Anybody may make names without end, but not addresses; so whoever floods from one address stands in its own way.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from swarmflow.runtime.transport.allowance import Allowance, Allowances

RELAYED = "relayed"  # the address of all who are connected through a relay, which hides their own
_IPV6_PREFIX_BITS = 64  # of one site, which has all addresses that begin with them


@dataclass(frozen=True, slots=True)
class Caller:
    """Who has opened a stream."""

    name: str  # its libp2p name, which the connection proves
    address: str = ""  # as `address_of` returns it


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """Limits of a door. unfinished: streams whose handshake is not finished."""

    unfinished_of_process: int
    unfinished_of_address: int
    unfinished: int
    streams_of_process: int
    streams_of_address: int
    streams: int
    process: Allowance
    address: Allowance


@dataclass(slots=True, eq=False)
class _Stream:
    caller: Caller
    unfinished: bool = True


class Door:
    """Admits streams within its limits.

    A further stream of a process or an address that has opened too many is refused. Of too many unfinished ones, the
    oldest of its address is closed, or of the address that has most: honest handshakes take a round trip.
    """

    def __init__(self, limits: DoorLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._streams: dict[asyncio.StreamWriter, _Stream] = {}  # oldest first
        self._of_process: Counter[str] = Counter()  # streams
        self._of_address: Counter[str] = Counter()
        self._unfinished_of_process: Counter[str] = Counter()
        self._unfinished_of_address: Counter[str] = Counter()
        self._allowances = Allowances(clock)  # by (kind, name or address)

    def enter(self, caller: Caller, writer: asyncio.StreamWriter) -> bool:
        """Return whether a stream may begin its handshake; whatever is returned, `leave` has to follow."""
        limits, address = self._limits, caller.address
        if not self._allowances.take(("process", caller.name), limits.process):
            return False
        if not self._allowances.take(("address", address), limits.address):
            return False
        if (
            self._unfinished_of_process[caller.name] >= limits.unfinished_of_process
            or self._of_process[caller.name] >= limits.streams_of_process
            or self._of_address[address] >= limits.streams_of_address
            or len(self._streams) >= limits.streams
        ):
            return False
        if self._unfinished_of_address[address] >= limits.unfinished_of_address:
            self._close_oldest(address)
        elif self._unfinished_of_address.total() >= limits.unfinished:
            [(most, _)] = self._unfinished_of_address.most_common(1)
            self._close_oldest(most)
        self._streams[writer] = _Stream(caller)
        self._of_process[caller.name] += 1
        self._of_address[address] += 1
        self._change_unfinished(caller, 1)
        return True

    def finish(self, writer: asyncio.StreamWriter) -> None:
        """Note that the handshake of a stream is over, which may stay open."""
        stream = self._streams.get(writer)
        if stream is not None and stream.unfinished:
            stream.unfinished = False
            self._change_unfinished(stream.caller, -1)

    def leave(self, writer: asyncio.StreamWriter) -> None:
        """Note that a stream has ended, or has not been admitted."""
        self.finish(writer)
        stream = self._streams.pop(writer, None)
        if stream is not None:
            _add(self._of_process, stream.caller.name, -1)
            _add(self._of_address, stream.caller.address, -1)

    def _close_oldest(self, address: str) -> None:
        of = (w for w, stream in self._streams.items() if stream.unfinished and stream.caller.address == address)
        writer = next(of)
        self.finish(writer)
        writer.transport.abort()

    def _change_unfinished(self, caller: Caller, change: int) -> None:
        _add(self._unfinished_of_process, caller.name, change)
        _add(self._unfinished_of_address, caller.address, change)


def _add(counter: Counter[str], key: str, change: int) -> None:
    """Change a count, and forget one that is 0."""
    counter[key] += change
    if not counter[key]:
        del counter[key]


def address_of(maddr: str) -> str:
    """Return the address that stands for whoever is connected from a multiaddr: an IP address, RELAYED, or the text.

    Of an IPv6 address the network counts, since one machine may have all of its addresses.
    """
    parts = maddr.split("/")
    if "p2p-circuit" in parts:
        return RELAYED
    if len(parts) > 2 and parts[1] in ("ip4", "ip6"):
        try:
            ip = ipaddress.ip_address(parts[2])
        except ValueError:
            return maddr
        return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, _IPV6_PREFIX_BITS), strict=False))
    return maddr
