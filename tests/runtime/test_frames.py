"""Frames: what is written is read; what is malformed is refused, by kind, before anything is allocated."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.runtime.transport.frames import BadFrame, Frame, FrameLimits, pack_end, pack_front, read_frame

LIMITS = FrameLimits(header_bytes_max=256, body_bytes_max=4096, bodies_max=3)


def packed(sequence: int, header: bytes, bodies: list[bytes]) -> bytes:
    return pack_front(sequence, header, [len(body) for body in bodies], FrameLimits()) + b"".join(bodies)


async def read(data: bytes, sequence: int = 0, *, ends: bool = True, stall_timeout_s: float = 5.0) -> Frame | None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    if ends:
        reader.feed_eof()
    return await asyncio.wait_for(read_frame(reader, sequence, LIMITS, stall_timeout_s), 10.0)


async def refused(data: bytes, sequence: int = 0) -> str:
    with pytest.raises(BadFrame) as caught:
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
        (packed(0, b"h", [b"x" * 4097]), 0, "body_size"),
        (b"swfr\x02" + packed(0, b"h", [])[5:], 0, "format"),
        (packed(0, b"h", [])[:-1] + b"x", 0, "checksum"),
    ],
)
async def test_a_refusal_names_its_kind(data: bytes, sequence: int, kind: str) -> None:
    assert await refused(data, sequence) == kind


@pytest.mark.asyncio
async def test_a_frame_that_stops_half_way_is_given_up() -> None:
    with pytest.raises(BadFrame) as caught:
        await read(packed(0, b"header", [])[:10], ends=False, stall_timeout_s=0.01)
    assert caught.value.kind == "stalled"


@pytest.mark.asyncio
async def test_announced_sizes_allocate_nothing() -> None:
    fronts = [
        pack_front(0, b"h", [2**40], FrameLimits(body_bytes_max=2**41)),
        pack_front(0, b"h" * 2**20, [], FrameLimits(header_bytes_max=2**21))[:64],
    ]
    tracemalloc.start()
    kinds = [await refused(front) for front in fronts]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kinds == ["body_size", "header_size"]
    assert peak_bytes < 2**20


@pytest.mark.parametrize(("header", "sizes"), [(b"h" * 257, []), (b"h", [4097]), (b"h", [1, 1, 1, 1])])
def test_a_frame_that_would_be_refused_is_not_sent(header: bytes, sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="over the limit"):
        pack_front(0, header, sizes, LIMITS)
