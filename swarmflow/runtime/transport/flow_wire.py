"""The wire form of a flow message: its name and its fields, like a message in a frame header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from swarmflow.core.protocol.messages import Negotiate
from swarmflow.core.protocol.messages.gwtf import InOrder, OrderedGwtfMessage
from swarmflow.core.protocol.messages.negotiation import FlowMessage, Reliable
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.plausibility import RELIABLE_TYPES
from swarmflow.errors import FrameError

NamedPayload = tuple[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Packed:
    """A Negotiate whose flow message is not decoded yet. Its fields are those of Negotiate."""

    stage: int
    flow: NamedPayload
    origin: ProcessId | None = None
    to: ProcessId | None = None


@dataclass(frozen=True, slots=True)
class _PackedReliable:
    """A Reliable whose message is not decoded yet."""

    number: int
    message: NamedPayload


@dataclass(frozen=True, slots=True)
class _PackedInOrder:
    """An InOrder whose message is not decoded yet."""

    session: int
    number: int
    known: int
    message: NamedPayload


_WRAPPERS = (Reliable, InOrder)
_DECODERS = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in get_args(FlowMessage) if kind not in _WRAPPERS}
# Of the messages that a Reliable and an InOrder may contain.
_RELIABLE_DECODERS = {kind.__name__: _DECODERS[kind.__name__] for kind in RELIABLE_TYPES}
_ORDERED_DECODERS = {kind.__name__: _DECODERS[kind.__name__] for kind in get_args(OrderedGwtfMessage)}
_RELIABLE_DECODER = msgspec.msgpack.Decoder(_PackedReliable)
_IN_ORDER_DECODER = msgspec.msgpack.Decoder(_PackedInOrder)


def pack(message: Negotiate) -> dict[str, Any]:
    """Return the fields of a Negotiate in the form in which they are encoded."""
    return {"stage": message.stage, "flow": _pack_payload(message.flow), "origin": message.origin, "to": message.to}


def unpack(packed: Packed) -> Negotiate:
    """Decode the flow message of a Negotiate. Raises FrameError or msgspec.DecodeError where it is not one."""
    name, fields = packed.flow
    payload: FlowMessage
    if name == Reliable.__name__:
        reliable = _RELIABLE_DECODER.decode(fields)
        payload = Reliable(reliable.number, _decoded(_RELIABLE_DECODERS, reliable.message))
    elif name == InOrder.__name__:
        ordered = _IN_ORDER_DECODER.decode(fields)
        message = _decoded(_ORDERED_DECODERS, ordered.message)
        payload = InOrder(ordered.session, ordered.number, ordered.known, message)
    else:
        payload = _decoded(_DECODERS, packed.flow)
    return Negotiate(packed.stage, payload, packed.origin, packed.to)


def _pack_payload(payload: FlowMessage) -> tuple[str, Any]:
    if isinstance(payload, Reliable):
        return Reliable.__name__, {"number": payload.number, "message": _pack_payload(payload.message)}
    if isinstance(payload, InOrder):
        numbers = {"session": payload.session, "number": payload.number, "known": payload.known}
        return InOrder.__name__, {**numbers, "message": _pack_payload(payload.message)}
    return type(payload).__name__, payload


def _decoded(kinds: dict[str, msgspec.msgpack.Decoder[Any]], named: NamedPayload) -> Any:  # noqa: ANN401
    decoder = kinds.get(named[0])
    if decoder is None:
        raise FrameError(f"there is no message {named[0][:40]!r}")
    return decoder.decode(named[1])
