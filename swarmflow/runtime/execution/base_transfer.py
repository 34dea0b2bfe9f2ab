"""Fetches the frozen weights of a stage from any processes that have them, and gives them to others.

A root in the manifest names them. The hashes of their pieces are taken from whoever sends those of that root, and each
piece from whoever sends the one with its hash: nobody's word counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from swarmflow.compute.base_weights import HASH_BYTES, base_root, piece_ranges
from swarmflow.compute.state_root import leaf_of
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import NetworkError
from swarmflow.runtime.transport.requests import Arguments, BusyError, Requests

log = logging.getLogger("swarmflow")

LEAVES, PIECE = "base/leaves", "base/piece"
_TIMEOUT_S = 120.0  # the first answer of a trainer takes until it has hashed a stage of its folder
_AT_A_TIME = 3  # requests to one process: hide the round trip
_BUSY_S = 0.5  # between two questions to a donor that is busy
_PATIENCE_S = 60.0

OnProgress = Callable[[ProcessId, int, int], None]
"""(donor, bytes received so far, bytes of all)."""


class BaseSource(Protocol):
    """The frozen weights of a stage. Both methods are called in threads, and raise NetworkError where they are gone."""

    def leaves(self) -> bytes:
        """Return the hashes of all pieces, one after another."""

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes start to stop."""


def serve_base(requests: Requests, source: Callable[[int], BaseSource], total_bytes: Callable[[int], int]) -> None:
    """Answer `base/leaves`: (stage), and `base/piece`: (stage, number of the piece).

    source: stage -> its frozen weights; raises NetworkError where they are not here. total_bytes: of a stage.
    """

    async def on_leaves(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        return [await asyncio.to_thread(lambda: source(_number(arguments, "stage")).leaves())]

    async def on_piece(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        stage, number = _number(arguments, "stage"), _number(arguments, "piece")

        def read() -> bytes:
            found, pieces = source(stage), piece_ranges(total_bytes(stage))
            if number >= len(pieces):
                raise NetworkError(f"stage {stage} has {len(pieces)} pieces of frozen weights")
            return found.read(*pieces[number])

        return [await asyncio.to_thread(read)]

    requests.serve(LEAVES, on_leaves)
    requests.serve(PIECE, on_piece, lane="background")


async def load_base(
    requests: Requests,
    donors: Sequence[ProcessId],
    stage: int,
    root: str,
    total_bytes: int,
    write: Callable[[int, memoryview], None],
    on_progress: OnProgress,
    near: Sequence[ProcessId] = (),
    patience_s: float = _PATIENCE_S,
) -> bytes:
    """Fetch the frozen weights of a stage; return the hashes of their pieces.

    donors: any of which may have them. near: those of this host, which are asked alone as long as that goes well. root:
    of the manifest. write: sets bytes from an offset on; it is called in a thread. patience_s: how long a donor may
    answer that it is busy. Raises NetworkError with the failure of each donor where some pieces cannot be had.
    """
    if near:
        try:
            return await _load_base(requests, near, stage, root, total_bytes, write, on_progress, patience_s)
        except NetworkError as error:
            log.info("not from the other peers of this host: %s", error)
    return await _load_base(requests, donors, stage, root, total_bytes, write, on_progress, patience_s)


async def _load_base(
    requests: Requests,
    donors: Sequence[ProcessId],
    stage: int,
    root: str,
    total_bytes: int,
    write: Callable[[int, memoryview], None],
    on_progress: OnProgress,
    patience_s: float,
) -> bytes:
    failures: dict[ProcessId, str] = {}
    for donor in donors:
        try:
            leaves = await _leaves(requests, donor, stage, root, total_bytes, patience_s)
            break
        except NetworkError as error:
            failures[donor] = str(error)
    else:
        why = "; ".join(failures.values()) or "nobody is known who has them"
        raise NetworkError(f"the frozen weights of stage {stage} could not be loaded: {why}")
    await _BaseLoad(requests, stage, leaves, total_bytes, write, on_progress, patience_s, failures).run(donors)
    return leaves


class _BaseLoad:
    """Pieces that are fetched from several donors, from each as fast as it gives."""

    def __init__(
        self,
        requests: Requests,
        stage: int,
        leaves: bytes,
        total_bytes: int,
        write: Callable[[int, memoryview], None],
        on_progress: OnProgress,
        patience_s: float,
        failures: dict[ProcessId, str],
    ) -> None:
        """failures: of donors that are asked for nothing more."""
        self._requests = requests
        self._stage = stage
        self._leaves = leaves
        self._total_bytes = total_bytes
        self._write = write
        self._on_progress = on_progress
        self._pieces = piece_ranges(total_bytes)
        self._left = deque(range(len(self._pieces)))
        self._failures = failures
        self._patience_s = patience_s
        self._busy_since_s: dict[ProcessId, float] = {}  # of donors that have given nothing since
        self._received_bytes = 0

    async def run(self, donors: Sequence[ProcessId]) -> None:
        """Fetch all pieces. Raises NetworkError when no donor is left."""
        while self._left:
            able = [donor for donor in donors if donor not in self._failures]
            if not able:
                reasons = "; ".join(self._failures.values())
                raise NetworkError(f"the frozen weights of stage {self._stage} could not be loaded: {reasons}")
            async with asyncio.TaskGroup() as group:
                for donor in able:
                    for _ in range(_AT_A_TIME):
                        group.create_task(self._take(donor))

    async def _take(self, donor: ProcessId) -> None:
        """Fetch pieces from one donor until none is left; one that fails is asked for nothing more."""
        while self._left and donor not in self._failures:
            number = self._left.popleft()
            try:
                data = await self._fetch(donor, number)
            except NetworkError as error:
                self._left.appendleft(number)
                if isinstance(error, BusyError) and self._may_wait(donor):
                    await asyncio.sleep(_BUSY_S)
                    continue
                self._failures[donor] = str(error)
                log.debug("frozen weights: %s", error)
                return
            except BaseException:
                self._left.appendleft(number)
                raise
            self._busy_since_s.pop(donor, None)
            await asyncio.to_thread(self._write, self._pieces[number][0], data)
            self._received_bytes += len(data)
            self._on_progress(donor, self._received_bytes, self._total_bytes)

    def _may_wait(self, donor: ProcessId) -> bool:
        """Return whether a donor that is busy may be asked again."""
        now_s = time.monotonic()
        return now_s - self._busy_since_s.setdefault(donor, now_s) < self._patience_s

    async def _fetch(self, donor: ProcessId, number: int) -> memoryview:
        arguments: Arguments = {"stage": self._stage, "piece": number}
        answer = await self._requests.ask(donor, PIECE, arguments, timeout_s=_TIMEOUT_S)
        start, stop = self._pieces[number]
        if len(answer) != 1 or len(answer[0]) != stop - start:
            raise NetworkError(f"{donor} sent frozen weights of another size than was asked for")
        if (
            await asyncio.to_thread(leaf_of, [answer[0]])
            != self._leaves[number * HASH_BYTES : (number + 1) * HASH_BYTES]
        ):
            raise NetworkError(f"{donor} sent frozen weights that are not those of the run")
        return answer[0]


async def _leaves(
    requests: Requests, donor: ProcessId, stage: int, root: str, total_bytes: int, patience_s: float
) -> bytes:
    """Return the hashes of all pieces from one process. Raises NetworkError where they are not those of the root."""
    until_s = time.monotonic() + patience_s
    while True:
        try:
            answer = await requests.ask(donor, LEAVES, {"stage": stage}, timeout_s=_TIMEOUT_S)
            break
        except BusyError:
            if time.monotonic() >= until_s:
                raise
            await asyncio.sleep(_BUSY_S)
    expected = HASH_BYTES * len(piece_ranges(total_bytes))
    if len(answer) != 1 or len(answer[0]) != expected or base_root(bytes(answer[0])) != root:
        raise NetworkError(f"{donor} has other frozen weights than the run")
    return bytes(answer[0])


def _number(arguments: Arguments, name: str) -> int:
    value = arguments.get(name)
    if not isinstance(value, int) or value < 0:
        raise NetworkError(f"{name} must be a number that is not negative")
    return value
