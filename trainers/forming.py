"""Forms the microbatches of a trainer in a thread of its own: a user's `collate` may take its time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from swarmflow.compute.codec import encode_tokens
from swarmflow.core.protocol.types import Microbatch
from swarmflow.runtime.execution.store import Buffer
from swarmflow.runtime.execution.worker import Worker
from trainers.data import Batch
from trainers.training_data import TrainingData

_TRAINING, _VALIDATION = (0.0,), (1.0,)

Encoded = tuple[Buffer, Buffer]  # inputs and targets


class Forming:
    """Takes one microbatch at a time from the data, those of training before batches of validation.

    On the event loop a `collate` of ten seconds would silence a leader until others take over from it.
    """

    def __init__(self, data: TrainingData, on_error: Callable[[BaseException], None]) -> None:
        """on_error: called on the event loop with what forming a training microbatch raises."""
        self._data = data
        self._worker = Worker("forming", on_error)

    def form(self, microbatch: Microbatch, done: Callable[[Encoded], None]) -> None:
        """Form a microbatch; `done` is called on the event loop."""

        def work() -> Encoded:
            inputs, targets = self._data.microbatch(microbatch.epoch.step, microbatch.index)
            return encode_tokens(inputs), encode_tokens(targets)

        self._worker.submit(_TRAINING, work, done)

    async def validation(self) -> AsyncIterator[Batch]:
        """Yield the batches of validation. Raises DataError."""
        batches = self._data.validation()
        while (batch := await self._worker.call(_VALIDATION, lambda: next(batches, None))) is not None:
            yield batch

    def close(self) -> None:
        """End the thread after the microbatch that it forms."""
        self._worker.stop()
