"""The handshake of a stream: the dialler's hello, the acceptor's reply, and the dialler's confirmation."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import Literal

from swarmflow.authority.certificates import CREDENTIAL_BYTES_MAX
from swarmflow.errors import FrameError

PROTOCOL_VERSION = 14
RUN_ID_BYTES_MAX = 256
REASON_BYTES_MAX = 512
CONFIRMATION = b"\x01"  # from the dialler, after a welcome: it is alive, and the stream is to be used

_MAGIC = b"swarmflo"
# Magic, protocol version, lane, reserved (0), incarnation, expected incarnation, bytes of the run id and of the
# credential that follow.
_HELLO = struct.Struct("!8sHBBQQHH")
_REPLY = struct.Struct("!8sBQH")  # magic, 1: welcome or 0: refused, incarnation, bytes of the reason that follows

LaneName = Literal["control", "bulk", "sums", "background"]
LANES: tuple[LaneName, ...] = ("control", "bulk", "sums", "background")
# A lane gives way to those of lower ranks. A step waits for its sums, and for nothing in the background.
RANKS: dict[LaneName, int] = {"control": 0, "bulk": 0, "sums": 1, "background": 2}


@dataclass(frozen=True, slots=True)
class Hello:
    """The dialler's part. It does not contain the dialler's name, which the connection proves."""

    run_id: str
    lane: LaneName
    incarnation: int  # the dialler's own
    expected: int  # the incarnation that the dialler wants to reach; 0: any
    credential: bytes = b""  # what proves the dialler's role in the run; empty: nothing
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class HelloReply:
    """The acceptor's part."""

    incarnation: int  # the acceptor's own
    reason: str = ""  # why the stream is refused; empty: it is accepted


def pack_hello(hello: Hello) -> bytes:
    """Return the bytes of a hello. Raises ValueError when the run id or the credential is over its limit."""
    run_id = hello.run_id.encode()
    if len(run_id) > RUN_ID_BYTES_MAX:
        raise ValueError(f"a run id of {len(run_id)} bytes is over the limit of {RUN_ID_BYTES_MAX}")
    if len(hello.credential) > CREDENTIAL_BYTES_MAX:
        raise ValueError(f"a credential of {len(hello.credential)} bytes is over the limit of {CREDENTIAL_BYTES_MAX}")
    lane, sizes = LANES.index(hello.lane), (len(run_id), len(hello.credential))
    front = _HELLO.pack(_MAGIC, hello.version, lane, 0, hello.incarnation, hello.expected, *sizes)
    return front + run_id + hello.credential


async def read_hello(reader: asyncio.StreamReader, timeout_s: float) -> Hello:
    """Read a hello. Raises FrameError when the bytes are not one, TimeoutError when it does not arrive in time."""
    async with asyncio.timeout(timeout_s):
        magic, version, lane, reserved, incarnation, expected, *sizes = _HELLO.unpack(
            await _exactly(reader, _HELLO.size)
        )
        if magic != _MAGIC:
            raise FrameError("refused a stream that does not begin with a hello of swarmflow")
        run_id_bytes, credential_bytes = sizes
        too_long = run_id_bytes > RUN_ID_BYTES_MAX or credential_bytes > CREDENTIAL_BYTES_MAX
        if lane >= len(LANES) or reserved or too_long or not incarnation:
            raise FrameError("refused a stream with an impossible hello")
        try:
            run_id = (await _exactly(reader, run_id_bytes)).decode()
        except UnicodeDecodeError:
            raise FrameError("refused a stream whose hello names a run in broken UTF-8") from None
        credential = await _exactly(reader, credential_bytes)
    return Hello(run_id, LANES[lane], incarnation, expected, credential, version)


def pack_reply(reply: HelloReply) -> bytes:
    """Return the bytes of a reply; a long reason is cut."""
    reason = reply.reason.encode()[:REASON_BYTES_MAX]
    return _REPLY.pack(_MAGIC, not reply.reason, reply.incarnation, len(reason)) + reason


async def read_reply(reader: asyncio.StreamReader, timeout_s: float) -> HelloReply:
    """Read a reply. Raises FrameError when the bytes are not one, TimeoutError when it does not arrive in time."""
    async with asyncio.timeout(timeout_s):
        magic, welcome, incarnation, size = _REPLY.unpack(await _exactly(reader, _REPLY.size))
        if magic != _MAGIC or welcome > 1 or size > REASON_BYTES_MAX or bool(size) == bool(welcome):
            raise FrameError("the other side answered a hello with something else")
        return HelloReply(incarnation, (await _exactly(reader, size)).decode(errors="replace"))


async def read_confirmation(reader: asyncio.StreamReader, timeout_s: float) -> bool:
    """Read the confirmation; return False when the dialler has closed the stream instead. Raises as `read_hello`."""
    async with asyncio.timeout(timeout_s):
        byte = await reader.read(1)
    if byte not in (CONFIRMATION, b""):
        raise FrameError("the other side confirmed its hello with something else")
    return bool(byte)


async def _exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise FrameError("the other side closed the stream inside its first words") from None
