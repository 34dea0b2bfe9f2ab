"""Headers: a message is named without being believed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.core.messages import Beat, Room
from swarmflow.core.types import Epoch
from swarmflow.errors import FrameError
from swarmflow.runtime.wire import Ask, Wire, decode_header, encode_header, message_name


@pytest.mark.parametrize("message", [Room(2), Beat(1, Epoch(0, 3)), Ask(7, "status")], ids=["Room", "Beat", "Ask"])
def test_a_message_comes_back_and_is_named(message: Wire) -> None:
    header = encode_header(message)
    assert decode_header(header) == message
    assert message_name(header) == type(message).__name__


@given(st.binary(max_size=64))
def test_what_is_no_message_has_no_name_of_its_own(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_header(data)
    assert message_name(data) == "unknown"


def test_a_name_that_is_made_up_is_unknown() -> None:
    assert message_name(encode_header(Room(2)).replace(b"Room", b"Boom")) == "unknown"


def test_the_protocols_description_names_every_message() -> None:
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    described = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text.replace("```", "")))))
    assert {kind.__name__ for kind in get_args(Wire)} <= described
