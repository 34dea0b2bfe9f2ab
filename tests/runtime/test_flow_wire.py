"""Flow messages on the wire: each is decoded as it was encoded, and anything else is refused."""

from __future__ import annotations

import math
from dataclasses import astuple
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.core.protocol.messages import Negotiate
from swarmflow.core.protocol.messages.gwtf import InOrder, OrderedGwtfMessage
from swarmflow.core.protocol.messages.negotiation import ExchangeTurn, FlowMessage, Label, Reliable, TraceFlow
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import FrameError
from swarmflow.runtime.transport.wire import decode_header, encode_header, message_name

A, B = ProcessId("a", 1), ProcessId("b", 2)
KINDS = [kind for kind in get_args(FlowMessage) if kind not in (Reliable, InOrder)]


def comparable(value: object) -> bool:
    """Return whether each number has at most 64 bits and is not NaN."""
    if isinstance(value, tuple):
        return all(map(comparable, value))
    if isinstance(value, float | int):
        return value == math.inf or abs(value) < 1 << 63
    return True


def payloads() -> st.SearchStrategy[FlowMessage]:
    plain = st.one_of([st.from_type(kind) for kind in KINDS])
    insisted = st.builds(Reliable, st.integers(0, 99), st.from_type(TraceFlow))
    numbers = [st.integers(0, 99)] * 3
    ordered = st.builds(InOrder, *numbers, st.one_of([st.from_type(kind) for kind in get_args(OrderedGwtfMessage)]))
    return (plain | insisted | ordered).filter(lambda payload: comparable(astuple(payload)))


@given(payloads())
def test_every_payload_is_decoded_as_it_was_encoded(payload: FlowMessage) -> None:
    header = encode_header(Negotiate(2, payload, A, B))
    assert decode_header(header) == Negotiate(2, payload, A, B)
    assert message_name(header) == "Negotiate"


@pytest.mark.parametrize(
    "payload",
    [
        ("Forward", {}),
        ("ExchangeTurn", {}),
        ("ExchangeTurn", {"idle": "now"}),
        ("Label", {"room": 1, "costs": [["a", 1.0, 1]], "capacity": 1, "width": 1}),
        ("Reliable", {"number": 1, "message": ["Reliable", {"number": 2, "message": ["RetraceFlows", {}]}]}),
        ("Reliable", {"number": 1, "message": ["ExchangeTurn", {"idle": 0}]}),
        ("Reliable", {"number": 1}),
        ("InOrder", {"session": 1, "number": 1, "known": 0, "message": ["ExchangeTurn", {"idle": 0}]}),
        ("InOrder", {"session": 1, "number": 1, "known": 0, "message": ["InOrderAck", {"session": 1, "number": 1}]}),
        ("InOrder", {"session": 1, "number": 1, "known": 0}),
        "ExchangeTurn",
    ],
    ids=str,
)
def test_anything_else_is_refused(payload: object) -> None:
    header = msgspec.msgpack.encode(("Negotiate", {"stage": 0, "flow": payload, "origin": None, "to": None}))
    with pytest.raises(FrameError):
        decode_header(header)


def test_a_message_is_not_much_longer_than_its_content() -> None:
    label = Label(4, ((A, 0.5, 0), (B, 0.25, 1)), 4, 8)
    assert len(encode_header(Negotiate(0, label))) < 150
    assert len(encode_header(Negotiate(0, ExchangeTurn(0)))) < 60
