"""How fast the link to a trainer is: the trainer sends some bytes when it is asked to, and fetches some when it is."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from swarmflow.core.protocol.types import ProcessId
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import NetworkError
from swarmflow.runtime.transport.allowance import Allowance, Allowances
from swarmflow.runtime.transport.requests import Arguments, Requests

SEND, FETCH = "link-trial", "link-trial/back"
BYTES_MAX = 1 << 21
_FIRST_BYTES = 1 << 16
_SLOW_S = 0.3  # that the first bytes take on a link for which more would take long
_TIMEOUT_S = 30.0
_OFTEN = Allowance(burst=8, per_s=0.1)  # of one process


@dataclass(frozen=True)
class LinkSpeed:
    """A link as it was measured once. Of a short transfer, so a lower bound for links that are long and wide."""

    round_trip_s: float
    down_bytes_per_s: float  # from the trainer to this process
    up_bytes_per_s: float


class LinkTrial:
    """Serves both requests. Zeros would be compressed on some links, so the bytes are random."""

    def __init__(self, requests: Requests, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = requests
        self._allowances = Allowances(clock)

    def serve(self) -> None:
        """Answer the requests of a session."""
        self._requests.serve(SEND, self._send)
        self._requests.serve(FETCH, self._fetch)

    async def _send(self, sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        return [os.urandom(self._allowed(sender, arguments))]

    async def _fetch(self, sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        seconds = await _timed(self._requests, sender, SEND, self._allowed(sender, arguments))
        return [msgspec.json.encode(seconds)]

    def _allowed(self, sender: ProcessId, arguments: Arguments) -> int:
        """Return the number of bytes that are asked for. Raises NetworkError where they are too many, or too often."""
        count = arguments.get("bytes")
        if not isinstance(count, int) or not 0 < count <= BYTES_MAX:
            raise NetworkError(f"a link is measured with 1 to {BYTES_MAX} bytes")
        if not self._allowances.take(sender.name, _OFTEN):
            raise NetworkError("a link is measured once a minute")
        return count


async def measure_link(requests: Requests, trainer: ProcessId) -> LinkSpeed:
    """Return how fast the link to a trainer is now, within seconds. Raises NetworkError.

    This process has to serve a LinkTrial too.
    """
    await _timed(requests, trainer, SEND, 1)  # opens the streams
    round_trip_s = await _timed(requests, trainer, SEND, 1)
    count = _FIRST_BYTES
    down_s = await _timed(requests, trainer, SEND, count)
    if down_s < _SLOW_S:
        count = BYTES_MAX
        down_s = await _timed(requests, trainer, SEND, count)
    (answer,) = await requests.ask(trainer, FETCH, {"bytes": count}, timeout_s=2 * _TIMEOUT_S)
    try:
        up_s = msgspec.json.decode(answer, type=float)
    except UNDECODABLE as error:
        raise NetworkError(f"the answer to a trial of the link is no number of seconds: {error}") from error
    return LinkSpeed(round_trip_s, count / _net(down_s, round_trip_s), count / _net(up_s, round_trip_s))


def _net(seconds: float, round_trip_s: float) -> float:
    return max(seconds - round_trip_s, 0.1 * round_trip_s, 1e-6)


async def _timed(requests: Requests, to: ProcessId, topic: str, count: int) -> float:
    """Return the seconds until the answer, of so many bytes, is there. Raises NetworkError."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    bodies = await requests.ask(to, topic, {"bytes": count}, timeout_s=_TIMEOUT_S)
    if sum(map(len, bodies)) != count:
        raise NetworkError(f"{to} answers to {topic!r} with another number of bytes than asked for")
    return clock() - began_s
