"""How a stream is cut into the pieces that a tokenizer sees: by its content alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers import sources
from trainers.sources import cut_pieces


@pytest.fixture(autouse=True, scope="module")
def _small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "PIECE_BYTES_MIN", 8)
        patch.setattr(sources, "PIECE_BYTES_MAX", 16)
        yield


def cut(*blocks: bytes) -> list[bytes]:
    return [piece.data for piece in cut_pieces("here", blocks)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"ab\ncd\n", [b"ab\ncd\n"]),
        (b"abc\nefg\nrest", [b"abc\nefg\n", b"rest"]),
        (b"abcdefghijk\nrest", [b"abcdefghijk\n", b"rest"]),
        (b"a" * 16, [b"a" * 16]),
        (b"a" * 16 + b"\n", [b"a" * 16, b"\n"]),
        (b"a" * 15 + "é".encode() + b"z", [b"a" * 15, "éz".encode()]),
        (b"a" * 13 + "\U0001f600".encode() + b"z", [b"a" * 13, "\U0001f600z".encode()]),
        (b"\x80" * 20, [b"\x80" * 16, b"\x80" * 4]),
    ],
)
def test_pieces_end_where_documented(data: bytes, expected: list[bytes]) -> None:
    assert cut(data) == expected


@settings(max_examples=200)
@given(text=st.text(alphabet="ab\né\U0001f600", max_size=120), data=st.data())
def test_pieces_do_not_depend_on_blocks(text: str, data: st.DataObject) -> None:
    whole = text.encode()
    points = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    blocks = [whole[start:stop] for start, stop in zip([0, *points], [*points, len(whole)], strict=True)]
    pieces = cut(*blocks)
    assert pieces == cut(whole)
    assert b"".join(pieces) == whole
    assert "".join(piece.decode() for piece in pieces) == text
    assert all(0 < len(piece) <= 16 for piece in pieces)
