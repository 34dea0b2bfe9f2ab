"""The control protocol of libp2p's daemon p2pd, and addresses as bytes. Spares the seconds of importing hivemind.

A message is a protobuf (hivemind/proto/p2pd.proto) after its length as a varint. The data of a stream follows at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from swarmflow.errors import NetworkError

RESPONSE_BYTES_MAX = 1 << 20

_CONNECT, _STREAM_OPEN = 1, 2  # Request.Type; type n has its arguments in field n + 1
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# Codes of the protocols in a multiaddr: those without a value, those with a text, those with a port.
_BARE = {"p2p-circuit": 290, "quic": 460, "quic-v1": 461, "ws": 477, "wss": 478, "tls": 448}
_TEXT = {"dns": 53, "dns4": 54, "dns6": 55, "dnsaddr": 56, "sni": 449}
_PORT = {"tcp": 6, "udp": 273}


def program() -> Path:
    """Return the daemon that hivemind's package contains. Raises NetworkError when it is missing."""
    spec = find_spec("hivemind")  # does not import a top-level package
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "hivemind_cli" / "p2pd"
        if path.is_file():
            return path
    raise NetworkError(
        "hivemind's p2pd is not installed; install swarmflow-train again (its package hivemind has p2pd)"
    )


def connect_request(name: str, addresses: Sequence[bytes], timeout_s: float) -> bytes:
    """Return the request to connect to a process at these addresses."""
    part = _bytes_field(1, peer_bytes(name)) + b"".join(_bytes_field(2, address) for address in addresses)
    return _request(_CONNECT, part + _number_field(3, max(1, round(timeout_s))))


def stream_request(name: str, protocol: str, timeout_s: float) -> bytes:
    """Return the request for a stream to a process that the daemon is connected to."""
    part = _bytes_field(1, peer_bytes(name)) + _bytes_field(2, protocol.encode())
    return _request(_STREAM_OPEN, part + _number_field(3, max(1, round(timeout_s))))


async def read_response(reader: asyncio.StreamReader) -> None:
    """Read the daemon's answer to a request. Raises NetworkError with the daemon's error, EOFError, OSError."""
    data = await reader.readexactly(await _read_varint(reader))
    fields = _fields(data)
    if fields.get(1) == 0:
        return
    error = fields.get(2)
    message = _fields(error).get(1) if isinstance(error, bytes) else None
    reason = message.decode(errors="replace") if isinstance(message, bytes) else "it gives no reason"
    raise NetworkError(" ".join(reason.split()))


def peer_bytes(name: str) -> bytes:
    """Return the multihash of a libp2p name (base58). Raises NetworkError when it is not one."""
    number = 0
    for letter in name:
        digit = _BASE58.find(letter)
        if digit < 0:
            raise NetworkError(f"{name[:100]!r} is no libp2p name")
        number = number * 58 + digit
    zeros = len(name) - len(name.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def address_bytes(text: str) -> bytes | None:
    """Return a multiaddr as bytes; None when the text is not one, or contains an unknown protocol."""
    parts = iter(text.split("/")[1:])
    packed = b""
    try:
        for name in parts:
            packed += _varint(_BARE[name]) if name in _BARE else _part_with_value(name, next(parts))
    except (ValueError, KeyError, StopIteration, OverflowError, NetworkError):
        return None
    return packed or None


def _part_with_value(name: str, value: str) -> bytes:
    """Return one part of a multiaddr as bytes. Raises errors of Python and of peer_bytes for an impossible one."""
    if name in ("ip4", "ip6"):
        address = ipaddress.IPv4Address(value) if name == "ip4" else ipaddress.IPv6Address(value)
        return _varint(4 if name == "ip4" else 41) + address.packed
    if name in _PORT:
        return _varint(_PORT[name]) + int(value).to_bytes(2, "big")
    data = peer_bytes(value) if name in ("p2p", "ipfs") else value.encode()
    return _varint(421 if name in ("p2p", "ipfs") else _TEXT[name]) + _varint(len(data)) + data


def _request(kind: int, part: bytes) -> bytes:
    message = _number_field(1, kind) + _bytes_field(kind + 1, part)
    return _varint(len(message)) + message


def _number_field(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes_field(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


async def _read_varint(reader: asyncio.StreamReader) -> int:
    value = shift = 0
    while True:
        (byte,) = await reader.readexactly(1)
        value |= (byte & 0x7F) << shift
        shift += 7
        if value > RESPONSE_BYTES_MAX or shift > 63:
            raise NetworkError("the network daemon p2pd answers with something else than a response")
        if byte < 0x80:
            return value


def _fields(data: bytes) -> dict[int, int | bytes]:
    """Return the numbers and byte strings of a protobuf by field number; of a repeated field the last value."""
    fields: dict[int, int | bytes] = {}
    offset = 0
    while offset < len(data):
        key, offset = _varint_at(data, offset)
        if key & 7 == 0:
            fields[key >> 3], offset = _varint_at(data, offset)
        elif key & 7 == 2:
            size, offset = _varint_at(data, offset)
            fields[key >> 3] = data[offset : offset + size]
            offset += size
        else:
            raise NetworkError("the network daemon p2pd answers with something else than a response")
    return fields


def _varint_at(data: bytes, offset: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset of its end."""
    value = shift = 0
    while offset < len(data):
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
    raise NetworkError("the network daemon p2pd answers with something else than a response")
