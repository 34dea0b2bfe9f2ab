"""Headers of frames: a message's name and fields as msgpack, checked against its types before it is delivered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final, get_args

import msgspec

from swarmflow.core.protocol.messages import Message, Negotiate
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import FrameError
from swarmflow.runtime.transport import flow_wire

REQUEST_BYTES_MAX: Final = 1 << 14  # the longest one says of each address of a trainer why it cannot be reached
TOPIC_MAX: Final = 64  # characters
ARGUMENTS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Request:
    """A request outside the protocol of training: for the manifest, the status, a part of a state.

    Many may wait for their turn (transport/answer_queue.py), so that they are short: REQUEST_BYTES_MAX with all texts.
    """

    id: int
    topic: Annotated[str, msgspec.Meta(max_length=TOPIC_MAX)]
    arguments: Annotated[dict[str, int | str], msgspec.Meta(max_length=ARGUMENTS_MAX)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a Request, with the result as body."""

    id: int
    error: str = ""  # why there is no result


@dataclass(frozen=True, slots=True)
class Evaluate:
    """A forward pass alone, to measure the loss of a version. Bodies: input and targets, of `rows` sequences each.

    credential, signature: of the asker, a trainer; peers pass them on (runtime/execution/evaluation.py).
    """

    ask: int  # the number of the request that the loss answers
    version: int
    rows: int
    asker: str  # name of the process that gets the loss
    asker_incarnation: int
    path: tuple[tuple[str, int], ...]  # the peers that follow, (name, incarnation) each
    credential: bytes = b""
    signature: bytes = b""


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """The run's policy, a newer one. Body: the policy (authority/policy.py), which proves itself."""


Wire = Message | Request | Response | Evaluate | PolicyChanged

_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Wire)}
_DECODERS = {
    name: msgspec.msgpack.Decoder(flow_wire.Packed if kind is Negotiate else kind) for name, kind in _TYPES.items()
}
_ENVELOPE = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_ENCODER = msgspec.msgpack.Encoder()


def encode_header(message: Wire) -> bytes:
    """Return the header of a frame that carries this message."""
    fields = flow_wire.pack(message) if isinstance(message, Negotiate) else message
    return _ENCODER.encode((type(message).__name__, fields))


def message_name(header: bytes | bytearray | memoryview) -> str:
    """Return the name of the message in a header; `unknown` for any other bytes."""
    try:
        name, _ = _ENVELOPE.decode(header)
    except UNDECODABLE:
        return "unknown"
    return name if name in _TYPES else "unknown"


def decode_header(header: bytes | bytearray | memoryview) -> Wire:
    """Return the message in a header. Raises FrameError for anything else, as for a missing or mistyped field."""
    try:
        name, fields = _ENVELOPE.decode(header)
        decoder = _DECODERS.get(name)
        if decoder is None:
            raise FrameError(f"there is no message {name[:40]!r}")
        if _TYPES[name] is Request and len(header) > REQUEST_BYTES_MAX:
            raise FrameError(f"a request of {len(header)} bytes, the limit is {REQUEST_BYTES_MAX}")
        decoded = decoder.decode(fields)
        message: Wire = flow_wire.unpack(decoded) if isinstance(decoded, flow_wire.Packed) else decoded
        return message
    except UNDECODABLE as error:
        raise FrameError(f"a header does not decode: {error}") from error
