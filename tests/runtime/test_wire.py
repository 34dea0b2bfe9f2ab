"""Headers: a message is named without being believed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.core.protocol.messages import CreditAvailable, LeaderHeartbeat, OpenStep
from swarmflow.core.protocol.messages.checks import MEMBERS_MAX
from swarmflow.core.protocol.types import ADDRESSES_MAX, Epoch, Member, ProcessId, Roster
from swarmflow.errors import FrameError
from swarmflow.runtime.transport.frames import FrameLimits
from swarmflow.runtime.transport.wire import Request, Wire, decode_header, encode_header, message_name


@pytest.mark.parametrize(
    "message",
    [CreditAvailable(2), LeaderHeartbeat(1, Epoch(0, 3)), Request(7, "status")],
    ids=lambda each: type(each).__name__,
)
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
    assert message_name(encode_header(CreditAvailable(2)).replace(b"CreditAvailable", b"DebitsAvailable")) == "unknown"


@pytest.mark.parametrize(
    "request_",
    [Request(1, "t" * 65), Request(1, "t", {str(n): n for n in range(17)}), Request(1, "t", {"x": "y" * (1 << 14)})],
)
def test_a_request_that_is_longer_than_any_honest_one_is_refused(request_: Request) -> None:
    with pytest.raises(FrameError):
        decode_header(encode_header(request_))


def test_the_longest_honest_request_is_none_of_these() -> None:
    reached = {
        f"/dns4/{'a' * 253}/tcp/65535/p2p/{n:052}": "Name or service not known" * 20 for n in range(ADDRESSES_MAX)
    }
    request = Request(1 << 62, "link-trial/back", dict(reached))
    assert decode_header(encode_header(request)) == request


def test_the_protocols_description_names_every_message() -> None:
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text.replace("```", "")))))
    assert {kind.__name__ for kind in get_args(Wire)} <= documented


def test_the_open_of_the_largest_swarm_fits_a_header_and_comes_back() -> None:
    addresses = tuple(f"/ip4/192.0.2.{n}/tcp/31337/p2p/{'Q' * 52}" for n in range(2))
    members = [Member(ProcessId(f"{'Q' * 46}{n:06}", 1 << 60), n % 5, 40, addresses) for n in range(MEMBERS_MAX - 1)]
    trainers = (Member(ProcessId("Q" * 52, 1 << 60), -1, 1, addresses),)
    opened = OpenStep(1, Epoch(0, 0), Roster(tuple(tuple(members[stage::5]) for stage in range(5)), trainers), "first")
    header = encode_header(opened)
    assert 1 << 20 < len(header) <= FrameLimits().header_bytes_max
    assert decode_header(header) == opened
