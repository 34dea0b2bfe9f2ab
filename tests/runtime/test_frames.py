"""Frames: what is written is read; what is malformed is refused, by kind, before anything is allocated."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarmflow.runtime.transport.frames import (
    JOINED_BYTES_MAX,
    Frame,
    FrameLimits,
    FrameRefusedError,
    frame_pieces,
    pack_end,
    pack_front,
    read_frame,
)

LIMITS = FrameLimits(header_bytes_max=256, bodies_bytes_max=3 * 4096, bodies_max=3)
WIDE = FrameLimits()


def packed(sequence: int, header: bytes, bodies: list[bytes]) -> bytes:
    front = pack_front(sequence, header, [len(body) for body in bodies], FrameLimits())
    return b"".join(frame_pieces(front, [memoryview(body) for body in bodies], 1 << 30))


async def read(data: bytes, sequence: int = 0, *, ends: bool = True, stall_timeout_s: float = 5.0) -> Frame | None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    if ends:
        reader.feed_eof()
    return await asyncio.wait_for(read_frame(reader, sequence, LIMITS, stall_timeout_s), 10.0)


async def refused(data: bytes, sequence: int = 0) -> str:
    with pytest.raises(FrameRefusedError) as caught:
        await read(data, sequence)
    return caught.value.kind


@pytest.mark.asyncio
@given(st.integers(0, 2**63), st.binary(min_size=1, max_size=256), st.lists(st.binary(max_size=4096), max_size=3))
async def test_a_frame_is_read_as_it_was_written(sequence: int, header: bytes, bodies: list[bytes]) -> None:
    data = packed(sequence, header, bodies)
    frame = await read(data, sequence)
    assert frame is not None
    assert frame.header == header
    assert [bytes(body) for body in frame.bodies] == bodies
    assert all(not body.readonly and body.format == "B" for body in frame.bodies)
    assert frame.size_bytes == len(data)
    assert not frame.is_end


@pytest.mark.asyncio
async def test_the_end_of_a_stream_is_told_from_a_stream_that_just_stops() -> None:
    end = await read(pack_end(7), 7)
    assert end is not None
    assert end.is_end
    assert await read(b"") is None


@pytest.mark.asyncio
@given(st.data())
async def test_a_frame_cut_anywhere_is_truncated(data: st.DataObject) -> None:
    whole = packed(0, b"header", [b"body" * 10, b""])
    cut = data.draw(st.integers(1, len(whole) - 1))
    assert await refused(whole[:cut]) == "truncated"


@pytest.mark.asyncio
@given(st.data())
async def test_a_flipped_bit_before_the_bodies_is_noticed(data: st.DataObject) -> None:
    front = pack_front(0, b"header", [4], LIMITS)
    bit = data.draw(st.integers(0, 8 * len(front) - 1))
    damaged = bytearray(front)
    damaged[bit // 8] ^= 1 << bit % 8
    assert await refused(bytes(damaged) + b"body")


@pytest.mark.asyncio
@given(st.data())
async def test_a_flipped_bit_in_a_body_or_in_their_checksum_is_noticed(data: st.DataObject) -> None:
    bodies = data.draw(st.lists(st.binary(max_size=4096), min_size=1, max_size=3))
    damaged = bytearray(packed(0, b"header", bodies))
    bit = data.draw(st.integers(0, 8 * (sum(map(len, bodies)) + 8) - 1))
    damaged[-1 - bit // 8] ^= 1 << bit % 8
    assert await refused(bytes(damaged)) == "damaged_body"


@pytest.mark.asyncio
async def test_bodies_of_one_length_that_have_changed_places_are_noticed() -> None:
    whole = packed(0, b"header", [b"one", b"two"])
    assert await refused(whole.replace(b"onetwo", b"twoone")) == "damaged_body"


@given(st.integers(1, 1 << 18), st.lists(st.integers(0, 1 << 18), max_size=3))
@example(632, [0])  # the checksum of the bodies does not fit any more
def test_the_pieces_of_a_frame_are_as_short_as_asked_for_and_make_the_same_frame(piece: int, sizes: list[int]) -> None:
    piece = max(piece, sum(sizes) // 1000, 8)
    bodies = [memoryview(LONG)[:size] for size in sizes]
    front = pack_front(0, b"header" * 100, sizes, WIDE)
    pieces = list(frame_pieces(front, bodies, piece))
    assert all(0 < len(each) <= piece for each in pieces)
    assert b"".join(pieces) == packed(0, b"header" * 100, [bytes(body) for body in bodies])


@pytest.mark.asyncio
@given(st.binary(min_size=1, max_size=200))
async def test_noise_is_refused(noise: bytes) -> None:
    assert await refused(noise) in {"magic", "truncated"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("data", "sequence", "kind"),
    [
        (packed(4, b"h", []), 5, "sequence"),
        (packed(6, b"h", []), 5, "sequence"),
        (packed(0, b"h" * 257, []), 0, "header_size"),
        (packed(0, b"", [b"body"]), 0, "header_size"),
        (packed(0, b"h", [b""] * 4), 0, "body_count"),
        (packed(0, b"h", [b"x" * (3 * 4096 + 1)]), 0, "body_size"),
        (packed(0, b"h", [b"x" * 4096] * 2 + [b"x" * 4097]), 0, "body_size"),
        (b"swfr\x01" + packed(0, b"h", [])[5:], 0, "format"),
        (packed(0, b"h", [])[:-1] + b"x", 0, "checksum"),
    ],
)
async def test_a_refusal_names_its_kind(data: bytes, sequence: int, kind: str) -> None:
    assert await refused(data, sequence) == kind


@pytest.mark.asyncio
async def test_a_frame_that_stops_half_way_is_given_up() -> None:
    with pytest.raises(FrameRefusedError) as caught:
        await read(packed(0, b"header", [])[:10], ends=False, stall_timeout_s=0.01)
    assert caught.value.kind == "stalled"


@pytest.mark.asyncio
async def test_a_frame_of_which_a_byte_comes_now_and_then_is_given_up_in_time() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(pack_front(0, b"h" * 256, [], LIMITS)[:-256])

    async def trickle() -> None:
        for _ in range(200):
            await asyncio.sleep(0.005)
            reader.feed_data(b"h")

    trickling = asyncio.create_task(trickle())
    with pytest.raises(FrameRefusedError) as caught:
        await read_frame(reader, 0, LIMITS, stall_timeout_s=0.1)
    assert caught.value.kind == "stalled"
    assert not trickling.done()
    trickling.cancel()


@pytest.mark.asyncio
async def test_announced_sizes_allocate_nothing() -> None:
    fronts = [
        pack_front(0, b"h", [2**40], FrameLimits(bodies_bytes_max=2**41)),
        pack_front(0, b"h" * 2**20, [], FrameLimits(header_bytes_max=2**21))[:64],
    ]
    tracemalloc.start()
    kinds = [await refused(front) for front in fronts]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kinds == ["body_size", "header_size"]
    assert peak_bytes < 2**20


async def read_in_pieces(data: bytes, sizes: list[int]) -> Frame | None:
    """The frame that a stream begins with; the stream arrives in pieces of these sizes, the rest at once."""
    reader = asyncio.StreamReader()

    async def write() -> None:
        start = 0
        for size in (*sizes, len(data)):
            reader.feed_data(data[start : start + size])
            start += size
            await asyncio.sleep(0)
        reader.feed_eof()

    writing = asyncio.create_task(write())
    try:
        return await read_frame(reader, 0, WIDE, 5.0)
    finally:
        await writing


LONG = random.Random(0).randbytes(1 << 20)
PIECES = st.lists(st.integers(0, 1 << 17), max_size=8)


@pytest.mark.asyncio
@given(st.integers(JOINED_BYTES_MAX, len(LONG)), PIECES)
async def test_a_long_header_comes_together_from_whatever_pieces_it_arrives_in(length: int, sizes: list[int]) -> None:
    frame = await read_in_pieces(packed(0, LONG[:length], [b"abc"]), sizes)
    assert frame is not None
    assert (frame.header, bytes(frame.bodies[0])) == (LONG[:length], b"abc")


@pytest.mark.asyncio
@given(st.floats(0.001, 0.999), PIECES)
async def test_of_a_long_header_that_is_cut_anywhere_nothing_is_delivered(share: float, sizes: list[int]) -> None:
    whole = packed(0, LONG, [])
    with pytest.raises(FrameRefusedError) as caught:
        await read_in_pieces(whole[: int(share * len(whole))], sizes)
    assert caught.value.kind == "truncated"


@pytest.mark.asyncio
@given(st.integers(0, 1 << 16), st.integers(0, 7))
async def test_a_flipped_bit_in_a_long_header_is_noticed(place: int, bit: int) -> None:
    damaged = bytearray(pack_front(0, bytes(1 << 17), [], WIDE))
    damaged[-1 - place] ^= 1 << bit
    reader = asyncio.StreamReader()
    reader.feed_data(bytes(damaged))
    with pytest.raises(FrameRefusedError) as caught:
        await read_frame(reader, 0, WIDE, 5.0)
    assert caught.value.kind == "checksum"


@pytest.mark.asyncio
async def test_a_long_header_that_was_announced_takes_no_more_memory_than_has_come() -> None:
    """A byte at a time, too: a sender must not cost more than it sends."""
    came = pack_front(0, bytes(WIDE.header_bytes_max), [], WIDE)[: 1 << 16]
    reader = asyncio.StreamReader()
    tracemalloc.start()
    reading = asyncio.create_task(read_frame(reader, 0, WIDE, 5.0))
    for start in range(0, len(came), 7):
        reader.feed_data(came[start : start + 7])
        await asyncio.sleep(0)
    reader.feed_eof()
    with pytest.raises(FrameRefusedError) as caught:
        await reading
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.kind == "truncated"
    assert peak_bytes < 2**19


@pytest.mark.parametrize(("header", "sizes"), [(b"h" * 257, []), (b"h", [4096, 8193]), (b"h", [1, 1, 1, 1])])
def test_a_frame_that_would_be_refused_is_not_sent(header: bytes, sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="over the limit"):
        pack_front(0, header, sizes, LIMITS)
