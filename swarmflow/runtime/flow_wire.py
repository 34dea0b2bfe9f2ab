"""The wire form of a negotiation's word: its name beside its fields, as of a message in a header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from swarmflow.core.flow.messages import FlowMessage, Reliable
from swarmflow.core.flow.trust import INSISTED
from swarmflow.core.messages import Negotiate
from swarmflow.core.types import ProcessId
from swarmflow.errors import FrameError

Named = tuple[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Packed:
    """A Negotiate, its word not decoded yet."""

    stage: int
    word: Named
    origin: ProcessId | None = None
    to: ProcessId | None = None


@dataclass(frozen=True, slots=True)
class _Insisted:
    number: int
    message: Named


_WORDS = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in get_args(FlowMessage) if kind is not Reliable}
_SURE = {kind.__name__: _WORDS[kind.__name__] for kind in INSISTED}
_INSISTED = msgspec.msgpack.Decoder(_Insisted)


def pack(message: Negotiate) -> dict[str, Any]:
    """What is encoded in its place."""
    return {"stage": message.stage, "word": _packed(message.word), "origin": message.origin, "to": message.to}


def unpack(packed: Packed) -> Negotiate:
    """The message. Raises FrameError, or msgspec.DecodeError, when its word is none."""
    name, fields = packed.word
    word: FlowMessage
    if name == Reliable.__name__:
        insisted = _INSISTED.decode(fields)
        word = Reliable(insisted.number, _decoded(_SURE, insisted.message))
    else:
        word = _decoded(_WORDS, packed.word)
    return Negotiate(packed.stage, word, packed.origin, packed.to)


def _packed(word: FlowMessage) -> tuple[str, Any]:
    if isinstance(word, Reliable):
        return Reliable.__name__, {"number": word.number, "message": _packed(word.message)}
    return type(word).__name__, word


def _decoded(kinds: dict[str, msgspec.msgpack.Decoder[Any]], named: Named) -> Any:  # noqa: ANN401
    decoder = kinds.get(named[0])
    if decoder is None:
        raise FrameError(f"there is no word {named[0][:40]!r}")
    return decoder.decode(named[1])
