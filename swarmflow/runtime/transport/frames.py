"""The wire form of one message: a typed front that is checked before anything is allocated, a header, and bodies.

All integers are big-endian. Front: magic (4 bytes), format (1), number of bodies (1), reserved (2, zero), sequence
number (8), header length (4); then a length (8) for each body; then the CRC-32 (4) of all of that and of the header;
then the header and the bodies; and after bodies their XXH3-64 (8), in one. A frame without header and bodies ends the
stream.

Nothing of a frame is handed on before its checksums are compared. Connections are authenticated (TLS), so what these
find is damage between the two ends of TLS and the memory of the processes: in daemons, sockets and copies.

A header may be long, since a message names as many members as the swarm has. Its writer sends it, and its reader takes
it, in pieces: neither holds up its event loop for a whole one, and an announced length costs the reader nothing.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xxhash

from swarmflow.errors import FrameError
from swarmflow.runtime.transport.acknowledging import ByteStream

MAGIC = b"swfr"
FORMAT = 2
READ_BYTES = 1 << 18
JOINED_BYTES_MAX = 1 << 16  # up to this size a frame is copied together, and written as one piece
BYTES_PER_S_MIN = 1 << 12  # mean rate of a whole frame: an uplink of 5 Mb/s may send 150 at once

_FRONT = struct.Struct("!4sBBHQI")
_LENGTH = struct.Struct("!Q")
_CHECKSUM = struct.Struct("!I")
_BODIES_CHECKSUM_BYTES = 8

FrameErrorKind = Literal[
    "magic",
    "format",
    "sequence",
    "header_size",
    "body_count",
    "body_size",
    "checksum",
    "damaged_body",
    "truncated",
    "stalled",
]
DAMAGE: frozenset[FrameErrorKind] = frozenset(("checksum", "damaged_body"))  # of what was written in order


class FrameRefusedError(FrameError):
    """A refused frame; `kind` has few values, so that it can label a metric."""

    def __init__(self, kind: FrameErrorKind, detail: str) -> None:
        super().__init__(f"refused a frame ({kind}): {detail}")
        self.kind: FrameErrorKind = kind


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of one frame, checked by the reader before it allocates and by the writer before it sends."""

    # A header is a whole message without its bodies; no list in it has a limit in bytes of its own. The longest lists
    # name MEMBERS_MAX members (core/protocol/messages/checks.py), which leaves 335 bytes for each; a member with two
    # addresses takes 274 (docs/decisions/rosters.md).
    header_bytes_max: int = 1 << 25
    bodies_bytes_max: int = 1 << 28  # of all bodies of a frame together
    bodies_max: int = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as read."""

    header: bytes
    bodies: list[memoryview]  # writable uint8 views on memory of their own
    size_bytes: int  # of the whole frame on the wire

    @property
    def is_end(self) -> bool:
        """Whether this is the last frame of its stream."""
        return not self.header and not self.bodies


def pack_front(sequence: int, header: bytes, body_sizes: Sequence[int], limits: FrameLimits) -> bytes:
    """Return everything of a frame that precedes its bodies.

    Raises ValueError when the frame is over the limits: its receiver would refuse it.
    """
    check_limits(len(header), body_sizes, limits)
    front = _FRONT.pack(MAGIC, FORMAT, len(body_sizes), 0, sequence, len(header))
    front += b"".join(_LENGTH.pack(size) for size in body_sizes)
    return front + _CHECKSUM.pack(zlib.crc32(header, zlib.crc32(front))) + header


def check_limits(header_bytes: int, body_sizes: Sequence[int], limits: FrameLimits) -> None:
    """Raise ValueError when a frame is over the limits."""
    if header_bytes > limits.header_bytes_max:
        raise ValueError(f"a header of {header_bytes} bytes is over the limit of {limits.header_bytes_max}")
    if len(body_sizes) > limits.bodies_max:
        raise ValueError(f"{len(body_sizes)} bodies are over the limit of {limits.bodies_max}")
    if sum(body_sizes) > limits.bodies_bytes_max:
        raise ValueError(f"bodies of {sum(body_sizes)} bytes are over the limit of {limits.bodies_bytes_max}")


def pack_end(sequence: int) -> bytes:
    """Return the frame that ends a stream."""
    return pack_front(sequence, b"", (), FrameLimits())


def frame_pieces(front: bytes, bodies: Sequence[memoryview], piece_bytes: int) -> Iterator[bytes | memoryview]:
    """Yield a frame as pieces to write, each at most `piece_bytes` long, a short frame as one piece.

    front: from `pack_front`. bodies: uint8 views. A body is read for the checksum as its pieces are taken.
    """
    checksum = xxhash.xxh3_64()
    trailer_bytes = _BODIES_CHECKSUM_BYTES if bodies else 0
    if len(front) + sum(map(len, bodies)) + trailer_bytes <= min(JOINED_BYTES_MAX, piece_bytes):
        for body in bodies:
            checksum.update(body)
        yield b"".join((front, *bodies, checksum.digest() if bodies else b""))
        return
    for start in range(0, len(front), piece_bytes):
        yield memoryview(front)[start : start + piece_bytes]
    for body in bodies:
        for start in range(0, len(body), piece_bytes):
            piece = body[start : start + piece_bytes]
            checksum.update(piece)
            yield piece
    if bodies:
        yield checksum.digest()


async def read_frame(
    reader: ByteStream,
    sequence: int,
    limits: FrameLimits,
    stall_timeout_s: float,
    reserve: Callable[[int], Awaitable[None]] | None = None,
) -> Frame | None:
    """Return the next frame, which must carry this sequence number; None when the stream ended between two frames.

    Waits for the first byte without a deadline, then at most `stall_timeout_s` for each further piece, and for the
    whole frame as much longer as its bytes take at BYTES_PER_S_MIN: else a sender that trickles would keep what it has
    reserved. reserve: waits for memory for so many bytes, header and bodies, before they are read; at most
    `stall_timeout_s` too. Raises FrameRefusedError when the frame is refused, OSError when the connection broke.
    """
    start = await reader.read(_FRONT.size)
    if not start:
        return None
    front = start + await _read(reader, _FRONT.size - len(start), stall_timeout_s)
    header_bytes, bodies = _check_front(front, sequence, limits)
    table = await _read(reader, bodies * _LENGTH.size, stall_timeout_s)
    sizes = [size for (size,) in _LENGTH.iter_unpack(table)]
    size_bytes = header_bytes + sum(sizes)
    if sum(sizes) > limits.bodies_bytes_max:
        raise FrameRefusedError("body_size", f"bodies of {sum(sizes)} bytes, the limit is {limits.bodies_bytes_max}")
    if reserve is not None:
        await _reserved(reserve(size_bytes), stall_timeout_s)
    whole_s = stall_timeout_s + size_bytes / BYTES_PER_S_MIN
    try:
        async with asyncio.timeout(whole_s):
            header, views = await _read_contents(reader, front + table, header_bytes, sizes, stall_timeout_s)
    except TimeoutError:
        raise FrameRefusedError("stalled", f"its {size_bytes} bytes had not come after {whole_s:g} s") from None
    around = len(front) + len(table) + _CHECKSUM.size + (_BODIES_CHECKSUM_BYTES if views else 0)
    return Frame(header, views, around + size_bytes)


async def _read_contents(
    reader: ByteStream, front: bytes, header_bytes: int, sizes: Sequence[int], stall_timeout_s: float
) -> tuple[bytes, list[memoryview]]:
    """Return header and bodies of a frame, compared with their checksums. Raises FrameRefusedError."""
    (checksum,) = _CHECKSUM.unpack(await _read(reader, _CHECKSUM.size, stall_timeout_s))
    header = await _read(reader, header_bytes, stall_timeout_s)
    if zlib.crc32(header, zlib.crc32(front)) != checksum:
        raise FrameRefusedError("checksum", "its front or its header is damaged")
    views, over_bodies = [], xxhash.xxh3_64()
    for size in sizes:
        # Left uninitialised, so that the system gives the memory page by page as bytes arrive: a sender that announces
        # a large body and sends none of it costs nothing.
        views.append(np.empty(size, np.uint8).data)
        await _fill(reader, views[-1], stall_timeout_s, over_bodies)
    trailer = await _read(reader, _BODIES_CHECKSUM_BYTES if views else 0, stall_timeout_s)
    if views and over_bodies.digest() != trailer:
        raise FrameRefusedError("damaged_body", "a body was damaged on the way; it counts as lost")
    return header, views


def _check_front(front: bytes, sequence: int, limits: FrameLimits) -> tuple[int, int]:
    """Return (length of the header in bytes, number of bodies). Raises FrameRefusedError when the front is refused."""
    magic, form, bodies, reserved, number, header_bytes = _FRONT.unpack(front)
    if magic != MAGIC:
        raise FrameRefusedError("magic", "it does not start as a frame of swarmflow")
    if form != FORMAT or reserved:
        raise FrameRefusedError("format", f"format {form}.{reserved}, this software reads {FORMAT}.0")
    if number != sequence:
        raise FrameRefusedError("sequence", f"number {number} where {sequence} is due: replayed, lost or out of order")
    if header_bytes > limits.header_bytes_max:
        raise FrameRefusedError(
            "header_size", f"a header of {header_bytes} bytes, the limit is {limits.header_bytes_max}"
        )
    if bodies > limits.bodies_max:
        raise FrameRefusedError("body_count", f"{bodies} bodies, the limit is {limits.bodies_max}")
    if bodies and not header_bytes:
        raise FrameRefusedError("header_size", "bodies without a header")
    return header_bytes, bodies


async def _reserved(memory: Awaitable[None], stall_timeout_s: float) -> None:
    try:
        async with asyncio.timeout(stall_timeout_s):
            await memory
    except TimeoutError:
        raise FrameRefusedError("stalled", f"there was no memory for it for {stall_timeout_s:g} s") from None


async def _read(reader: ByteStream, size: int, stall_timeout_s: float) -> bytes:
    data = bytearray()  # grows as bytes arrive: a sender that announces a long header and sends none costs nothing
    while len(data) < size:
        data += await _read_piece(reader, size - len(data), stall_timeout_s)
    return bytes(data)


async def _fill(reader: ByteStream, view: memoryview, stall_timeout_s: float, checksum: xxhash.xxh3_64) -> None:
    filled = 0
    while filled < len(view):
        piece = await _read_piece(reader, len(view) - filled, stall_timeout_s)
        view[filled : filled + len(piece)] = piece
        checksum.update(view[filled : filled + len(piece)])  # where it lies now, so that the copy is checked too
        filled += len(piece)


async def _read_piece(reader: ByteStream, missing_bytes: int, stall_timeout_s: float) -> bytes:
    """Return what has arrived of the missing bytes, at least one and at most READ_BYTES."""
    try:
        async with asyncio.timeout(stall_timeout_s):
            piece = await reader.read(min(missing_bytes, READ_BYTES))
    except TimeoutError:
        raise FrameRefusedError("stalled", f"nothing came for {stall_timeout_s:g} s inside it") from None
    if not piece:
        raise FrameRefusedError("truncated", f"the stream ended inside it, {missing_bytes} bytes short")
    return piece
