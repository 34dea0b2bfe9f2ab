"""Measures the validation loss of a version: batches go forward through one peer of each stage, between two steps."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt

from swarmflow.compute.codec import encode_tokens
from swarmflow.core.protocol.messages.checks import COUNT_MAX
from swarmflow.core.protocol.types import ProcessId, Roster
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import AuthorityError, FrameError, NetworkError
from swarmflow.runtime.execution.session import Session, log
from swarmflow.runtime.execution.stage_host import Evaluated, StageHost
from swarmflow.runtime.transport.wire import Evaluate, Response, encode_header

BATCHES_AT_A_TIME = 4  # on their way, so that the stages work beside each other
TRIES_PER_BATCH = 3  # the first included
LOSS_MAX = 1e30  # of a batch: so many of them can be added up
QUEUED_MAX = 4 * BATCHES_AT_A_TIME  # at a peer; more than one trainer sends, whose tries may have been given up
TRY_TIMEOUT_S = 120.0  # for a batch to come back through all stages

Batch = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]  # inputs and targets, token ids [B, T] each
LossSum = tuple[float, int]  # the sum of the losses of a batch's targets, and how many targets


class EvaluationService:
    """A peer's side: it runs its stage forward, and sends the activation on, or the loss back to the trainer."""

    def __init__(self, session: Session, host: StageHost) -> None:
        self._session = session
        self._host = host
        self._version = -1  # of the requests that were taken
        self._taken: set[tuple[str, int, int]] = set()  # (asker, incarnation, ask) each
        self._queued = 0

    def handle(self, message: Evaluate, bodies: list[memoryview]) -> None:
        """Run a batch through the stage that is served. bodies: token ids or the activation, and the targets.

        `message.path` has the peers of the stages that follow. A path that this process cannot be on is dropped, as is
        a batch of another version, one that no trainer has signed, one that has come before, and one too many: a
        trainer has a deadline. Bytes that do not decode are answered with an error.
        """
        stages, me = self._host.manifest.stages, self._session.me.name
        if len(message.path) >= stages or me in (message.asker, *(name for name, _ in message.path)):
            return
        signed = _signed(message.ask, message.version, message.asker_incarnation)
        try:
            self._session.access.check_trainer(message.asker, message.credential, message.signature, signed)
        except AuthorityError as error:
            log.debug("a validation batch in the name of %s is dropped: %s", message.asker[-6:], error)
            return
        if not self._take(message, bodies):
            return

        def done(result: Evaluated) -> None:  # on the event loop: an activation, or the LossSum of the last stage
            self._queued -= 1
            asker = ProcessId(message.asker, message.asker_incarnation)
            if isinstance(result, FrameError):
                self._session.links.send(asker, encode_header(Response(message.ask, str(result))))
            elif message.path and not isinstance(result, tuple):
                header = encode_header(replace(message, path=message.path[1:]))
                self._session.links.send(ProcessId(*message.path[0]), header, [result, bodies[1]], lane="bulk")
            elif not message.path and isinstance(result, tuple):
                body = msgspec.json.encode(result)
                self._session.links.send(asker, encode_header(Response(message.ask)), [body])
            # else the path goes on after the last stage or ends before it, which no honest process asks for

        self._host.evaluate(message, bodies, done)

    def _take(self, message: Evaluate, bodies: list[memoryview]) -> bool:
        """Return whether a request fits what is served, has not come before, and has room; record it then."""
        served = self._host.served
        fits = len(bodies) == 2 and 1 <= message.rows <= self._host.manifest.microbatch_sequences
        if served is None or served.version != message.version or not fits:
            return False
        if message.version != self._version:
            self._version, self._taken = message.version, set()
        request = message.asker, message.asker_incarnation, message.ask
        if request in self._taken or self._queued >= QUEUED_MAX:
            return False
        self._taken.add(request)
        self._queued += 1
        return True


async def measure_loss(
    session: Session,
    version: int,
    roster: Roster,
    batches: AsyncIterator[Batch],
    on_returned: Callable[[list[ProcessId]], None],
) -> float:
    """Return the mean cross-entropy over all targets; NaN: there are none, or a batch failed in all of its tries.

    Each batch goes through one peer of each stage, the next batch and each further try through the next ones.
    on_returned: called with the peers that a batch has come back through, which shows that they work.
    """
    gate = asyncio.Semaphore(BATCHES_AT_A_TIME)  # taken before a batch is made: only so many are in memory

    async def measure(place: int, batch: Batch) -> LossSum:
        try:
            for attempt in range(TRIES_PER_BATCH):
                path = [stage[(place + attempt) % len(stage)].process for stage in roster.stages]
                try:
                    result = await _pass_forward(session, version, path, batch)
                except NetworkError as error:
                    failure = error
                else:
                    on_returned(path)
                    return result
            raise failure
        finally:
            gate.release()

    tasks: list[asyncio.Task[LossSum]] = []
    try:
        await gate.acquire()
        async for batch in batches:
            tasks.append(asyncio.create_task(measure(len(tasks), batch)))
            await gate.acquire()
        results = await asyncio.gather(*tasks)
    except NetworkError as error:
        log.warning("the validation loss of version %d could not be measured: %s", version, error)
        return math.nan
    finally:
        for task in tasks:
            task.cancel()
    targets = sum(count for _, count in results)
    return math.fsum(loss for loss, _ in results) / targets if targets else math.nan


def _signed(ask: int, version: int, incarnation: int) -> bytes:
    """Return what a trainer signs of its Evaluate: peers change the rest on the way."""
    return msgspec.msgpack.encode(("evaluate", ask, version, incarnation))


async def _pass_forward(session: Session, version: int, path: list[ProcessId], batch: Batch) -> LossSum:
    """Send a batch through the peers of a path, and wait for its loss. Raises NetworkError."""
    ask, future = session.requests.expect(*path)
    credential, signature = session.access.sign(session.me.name, _signed(ask, version, session.me.incarnation))
    message = Evaluate(
        ask,
        version,
        rows=len(batch[0]),
        asker=session.me.name,
        asker_incarnation=session.me.incarnation,
        path=tuple((process.name, process.incarnation) for process in path[1:]),
        credential=credential,
        signature=signature,
    )
    bodies = [encode_tokens(batch[0]), encode_tokens(batch[1])]
    session.links.send(path[0], encode_header(message), bodies, lane="bulk")
    answer = await session.requests.wait(ask, future, "a validation batch did not come back", TRY_TIMEOUT_S)
    try:
        loss, count = msgspec.json.decode(answer[0], type=tuple[float, int])
    except (*UNDECODABLE, IndexError) as error:
        raise NetworkError(f"a validation loss does not decode: {error}") from error
    if not abs(loss) <= LOSS_MAX or not 0 <= count <= COUNT_MAX:
        raise NetworkError("an impossible validation loss came back")
    return loss, count
