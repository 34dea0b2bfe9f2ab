"""Forward-only passes through the stages, to measure the loss of a version."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from swarmflow.compute.codec import encode_ints
from swarmflow.core.protocol.types import ProcessId, Roster
from swarmflow.errors import FrameError, NetworkError
from swarmflow.runtime.execution.session import Session, log
from swarmflow.runtime.execution.stage_host import Evaluated, StageHost
from swarmflow.runtime.transport.wire import Evaluate, Response, encode_header

_AT_A_TIME = 4
_TRIES = 3
_TIMEOUT_S = 120.0

Batch = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]


class EvaluationService:
    """A peer's side: computes a hop, and forwards or answers it."""

    def __init__(self, session: Session, host: StageHost) -> None:
        self._session = session
        self._host = host

    def handle(self, message: Evaluate, bodies: list[memoryview]) -> None:
        """Compute this hop and forward it; a path that this process cannot be on is dropped."""
        stages, me = self._host.manifest.stages, self._session.me.name
        if len(message.path) >= stages or me in (message.asker, *(name for name, _ in message.path)):
            return

        def done(result: Evaluated) -> None:
            asker = ProcessId(message.asker, message.asker_incarnation)
            if isinstance(result, FrameError):
                self._session.links.send(asker, encode_header(Response(message.ask, str(result))))
            elif message.path:
                following = Evaluate(
                    message.ask,
                    message.version,
                    message.rows,
                    message.asker,
                    message.asker_incarnation,
                    message.path[1:],
                )
                header = encode_header(following)
                if isinstance(result, tuple):
                    return  # the path goes on after the last stage: an invalid request
                self._session.links.send(ProcessId(*message.path[0]), header, [result, bodies[1]], bulk=True)
            else:
                body = msgspec.json.encode(result)
                self._session.links.send(asker, encode_header(Response(message.ask)), [body])

        self._host.evaluate(message, bodies, done)


async def measure_loss(
    session: Session,
    version: int,
    roster: Roster,
    batches: Iterable[Batch],
    on_arrival: Callable[[list[ProcessId]], None],
) -> float:
    """Mean cross-entropy over all targets of the batches (inputs, targets: int32 [B, T]), NaN where it failed.

    The batches go to the peers of each stage in turn; a batch that does not return is tried on other peers.
    on_arrival: called with the path of each batch that has returned.
    """
    gate = asyncio.Semaphore(_AT_A_TIME)

    async def one(number: int, batch: Batch) -> tuple[float, int]:
        try:
            for attempt in range(_TRIES):
                path = [stage[(number + attempt) % len(stage)].process for stage in roster.stages]
                try:
                    result = await _through(session, version, path, batch)
                except NetworkError as error:
                    failure = error
                else:
                    on_arrival(path)
                    return result
            raise failure
        finally:
            gate.release()

    tasks: list[asyncio.Task[tuple[float, int]]] = []
    try:
        for number, batch in enumerate(batches):
            await gate.acquire()
            tasks.append(asyncio.create_task(one(number, batch)))
        results = await asyncio.gather(*tasks)
    except NetworkError as error:
        log.warning("the validation loss of version %d could not be measured: %s", version, error)
        return math.nan
    finally:
        for task in tasks:
            task.cancel()
    tokens = sum(count for _, count in results)
    return math.fsum(loss for loss, _ in results) / tokens if tokens else math.nan


async def _through(session: Session, version: int, path: list[ProcessId], batch: Batch) -> tuple[float, int]:
    number, future = session.requests.expect()
    rest = tuple((process.name, process.incarnation) for process in path[1:])
    me = session.me
    message = Evaluate(number, version, len(batch[0]), me.name, me.incarnation, rest)
    bodies = [encode_ints(batch[0]), encode_ints(batch[1])]
    session.links.send(path[0], encode_header(message), bodies, bulk=True)
    answer = await session.requests.wait(number, future, "a validation batch did not come back", _TIMEOUT_S)
    try:
        return msgspec.json.decode(answer[0], type=tuple[float, int])
    except (msgspec.DecodeError, IndexError) as error:
        raise NetworkError(f"a validation loss does not decode: {error}") from error
