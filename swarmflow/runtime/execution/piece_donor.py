"""Gives pieces of the served stage to peers that load it: their state, or the updates that they lack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from swarmflow.compute.flat_tensors import Buffer
from swarmflow.compute.state_root import PIECE_ELEMENTS, Span
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import CorruptError, NetworkError
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.transport.requests import Arguments, Requests

TOPIC = "state/piece"
LEAVES = "state/leaves"
SPAN_ELEMENTS_MAX = 1 << 17  # of a request: so long are the updates of neighbouring pieces that are given together
_AGAIN_S = 0.02
_UPDATE_S = 30.0  # the longest wait for the end of an update


@dataclass(frozen=True)
class PieceUpdate:
    """An update, without its sums."""

    step: int
    scale: float
    learning_rate: float
    ratios: tuple[float, ...]  # (Optimizer.follow)
    size_bytes: int  # of its packed sums


@dataclass(frozen=True)
class PieceAnswer:
    """What the first body of an answer says of the second one.

    updates: from the version that was asked for; none, and no state either: there is nothing newer.
    """

    version: int  # of the donor
    stop: int  # where the state that is given ends
    updates: tuple[PieceUpdate, ...] = ()

    def fits(self, have: int, stop: int, size_bytes: int) -> bool:
        """Return whether it can be the answer to a peer that has a version of a piece, or -1, with such a second body.

        stop: where the first piece that was asked for ends.
        """
        if not self.updates:
            return self.stop == stop if size_bytes else self.version == have
        steps, sizes = [each.step for each in self.updates], [each.size_bytes for each in self.updates]
        follows = have >= 0 and self.version == have + len(steps) and steps == list(range(have, self.version))
        return follows and min(sizes) >= 0 and sum(sizes) == size_bytes


def serve_pieces(
    requests: Requests,
    serving: Callable[[int], Served],
    on_asked: Callable[[bool], None],
    on_damaged: Callable[[], None],
) -> None:
    """Answer `state/piece`: (stage, group, start, stop, have), have being the version of what is there, or -1.

    And `state/leaves`: (stage, version), with the hashes of all pieces, of the last versions.

    serving: returns the stage of this number; raises NetworkError where it is not here. on_asked: called with
    each request, and whether it is for updates of a piece that is there. on_damaged: called where the state is not what
    it was: nothing of it is given.
    """

    async def on_piece(sender: ProcessId, arguments: Arguments) -> Sequence[bytes | memoryview]:
        stage, have = _number(arguments, "stage"), _number(arguments, "have")
        span = Span(str(arguments.get("group", "")), _number(arguments, "start"), _number(arguments, "stop"))
        until_s = time.monotonic() + _UPDATE_S
        while time.monotonic() < until_s:
            served = serving(stage)
            if not served.pieces.fits(span) or span.stop - span.start > SPAN_ELEMENTS_MAX:
                raise NetworkError(f"stage {stage} has no piece {str(span)[:80]}")
            served.log.want()
            on_asked(have >= 0)
            try:
                given = await asyncio.to_thread(_give, served, span, have)
            except CorruptError as error:
                on_damaged()
                raise NetworkError(str(error)) from None
            if given is not None:
                return [msgspec.json.encode(given[0]), memoryview(given[1]).cast("B")]
            await asyncio.sleep(_AGAIN_S)
        raise NetworkError(f"stage {stage} is being updated for more than {_UPDATE_S:.0f} s")

    async def on_leaves(sender: ProcessId, arguments: Arguments) -> Sequence[bytes | memoryview]:
        leaves = serving(_number(arguments, "stage")).leaves.get(_number(arguments, "version"))
        if leaves is None:
            raise NetworkError(f"the hashes of version {arguments['version']} are not here")
        return [leaves]

    requests.serve(TOPIC, on_piece, lane="background")
    requests.serve(LEAVES, on_leaves, lane="background")


def _give(served: Served, span: Span, have: int) -> tuple[PieceAnswer, Buffer] | None:
    """Return what leads from a version of a span to the present one; None: an update of the stage is under way.

    Raises CorruptError.
    """
    version = served.version
    if version < 0:
        return None
    updates = served.log.since(have, version) if 0 <= have <= version else None
    if updates is None or (version - have) * served.pieces.update_bytes(span) > served.pieces.state_bytes(span):
        first = Span(span.group, span.start, min(span.stop, span.start + PIECE_ELEMENTS))
        state = served.read(first, version)
        if served.version != version:
            return None  # an update meanwhile has mixed two versions
        if state is None:
            raise CorruptError(f"{first} at version {version} is damaged in this process' memory")
        return PieceAnswer(version, first.stop), state
    packed = [update.sums[span.group].pack(span.start, span.stop) for update in updates]
    described = tuple(
        PieceUpdate(update.step, update.scale, update.learning_rate, update.ratios[span.group], len(data))
        for update, data in zip(updates, packed, strict=True)
    )
    return PieceAnswer(version, span.start, described), bytearray().join(packed)


def _number(arguments: Arguments, name: str) -> int:
    value = arguments.get(name)
    if not isinstance(value, int) or not -1 <= value < 1 << 62:
        raise NetworkError(f"{name} must be a number")
    return value
