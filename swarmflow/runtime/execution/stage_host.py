"""Computes a peer's stage on its device, in worker threads, as the machine's actions ask."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from swarmflow.compute.codec import codec_named, decode_tokens
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.exact import EXPONENT, ExponentOverflowError
from swarmflow.compute.finite import NotFiniteError, finite
from swarmflow.compute.stage import Stage
from swarmflow.core.protocol.actions import Discard, Reset, RunBackward, RunForward, RunLoss, RunReplay
from swarmflow.core.protocol.events import (
    BackwardComputed,
    ComputedNotFinite,
    ComputeFailed,
    Event,
    ForwardComputed,
    LossComputed,
    Overflowed,
    Replayed,
)
from swarmflow.core.protocol.types import Microbatch, Ref
from swarmflow.errors import FrameError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.account import Account, Direction
from swarmflow.runtime.execution.driver import Driver
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.execution.step_end import StepEnd
from swarmflow.runtime.execution.store import Buffer
from swarmflow.runtime.execution.worker import Worker
from swarmflow.runtime.transport.wire import Evaluate

log = logging.getLogger("swarmflow")

# Urgency in the compute thread: an earlier step goes first; of one step, a backward frees memory and feeds the stage
# before, and a forward only adds work.
_FIRST, _PASSES, _LATER = (0.0,), 1.0, (2.0,)
_BACKWARD, _FORWARD = 0.0, 1.0

X = TypeVar("X")
Y = TypeVar("Y")
Failure = Overflowed | ComputedNotFinite
Evaluated = memoryview | tuple[float, int] | FrameError


class StageHost:
    """Runs the actions of a peer's machine that compute.

    Two threads: `compute` runs the stage; `codec` turns wire bytes into tensors and back in parallel. Work of an epoch
    that is over (Reset) is dropped in either.
    """

    def __init__(self, manifest: Manifest, driver: Driver, compute: Worker, codec: Worker) -> None:
        self.manifest = manifest
        self.served: Served | None = None
        self._driver = driver
        self._compute = compute
        self._codec_thread = codec
        self._codec = codec_named(manifest.codec)
        self._dtype = torch.bfloat16 if manifest.precision == "bf16" else torch.float32
        self._run = 0
        self._discards: Counter[Microbatch] = Counter()
        settled = driver.metrics.settled_seconds
        self._codec_bytes = driver.metrics.codec_bytes
        self._account = Account(lambda outcome, seconds: settled.at(outcome).inc(seconds))
        self.end = StepEnd(driver, compute, self._serving, self._account)

    def effects(self) -> dict[type[Any], Callable[[Any], None]]:
        """Return the effect of each kind of action."""
        return {
            RunForward: self.run_forward,
            RunLoss: self.run_loss,
            RunBackward: self.run_backward,
            RunReplay: self.run_replay,
            Discard: self.discard,
            Reset: self.reset,
            **self.end.effects(),
        }

    async def warm_up(self) -> None:
        """Use the codec once: its imports take seconds, for which a step should not wait."""
        await self._codec_thread.call(_FIRST, lambda: self._codec.encode(torch.zeros(1, 1)))

    # --- microbatches -------------------------------------------------------------------------------------------------

    def run_forward(self, action: RunForward) -> None:
        """Decode, forward, encode."""
        data = self._driver.store.get(action.input)

        def computed(output: Tensor) -> None:
            self._encode(action.microbatch, output, lambda ref: ForwardComputed(action.microbatch, ref), "activation")

        def compute(served: Served, x: Tensor) -> Tensor:
            draw = self._draw(action.microbatch)
            runner = served.runner(action.microbatch.epoch.step)
            return runner.forward(action.microbatch, x, draw) if action.keep else runner.recompute(x, draw)

        direction: Direction = "recompute" if action.again else "forward"
        self._decode(action.microbatch, direction, lambda stage: self._input(stage, data), compute, computed)

    def run_loss(self, action: RunLoss) -> None:
        """Decode, forward, loss, backward, encode."""
        data, targets = self._driver.store.get(action.input), self._driver.store.get(action.targets)

        def compute(served: Served, x: tuple[Tensor, Tensor]) -> tuple[float, int, Tensor | None]:
            mb = action.microbatch
            return served.runner(mb.epoch.step).loss(mb, x[0], x[1], self._draw(mb), self._number(mb))

        def computed(result: tuple[float, int, Tensor | None]) -> None:
            loss_sum, tokens, gradient = result
            if gradient is None:
                self._driver.post(LossComputed(action.microbatch, loss_sum, tokens, None))
            else:
                event = partial(LossComputed, action.microbatch, loss_sum, tokens)
                self._encode(action.microbatch, gradient, event, "gradient")

        self._decode(
            action.microbatch,
            "loss",
            lambda stage: (self._input(stage, data), self._targets(targets)),
            compute,
            computed,
        )

    def run_backward(self, action: RunBackward) -> None:
        """Decode, backward, encode."""
        data, number = self._driver.store.get(action.gradient), self._number(action.microbatch)

        def compute(served: Served, x: Tensor) -> Tensor | None:
            return served.runner(action.microbatch.epoch.step).backward(action.microbatch, x, number)

        def computed(gradient: Tensor | None) -> None:
            if gradient is None:
                self._driver.post(BackwardComputed(action.microbatch, None))
            else:
                self._encode(action.microbatch, gradient, partial(BackwardComputed, action.microbatch), "gradient")

        self._decode(action.microbatch, "backward", lambda stage: self._boundary_tensor(stage, data), compute, computed)

    def run_replay(self, action: RunReplay) -> None:
        """Decode, forward, backward; encode, where the gradient of the input is needed."""
        store, draw = self._driver.store, self._draw(action.microbatch)
        data, targets = store.get(action.input), store.get(action.targets)
        gradient = None if action.gradient is None else store.get(action.gradient)

        def decode(stage: Stage) -> tuple[Tensor, Tensor]:
            given = self._targets(targets) if gradient is None else self._boundary_tensor(stage, gradient)
            return self._input(stage, data), given

        def compute(served: Served, x: tuple[Tensor, Tensor]) -> Tensor | None:
            given = {"targets" if gradient is None else "grad": x[1]}
            number = self._number(action.microbatch)
            runner = served.runner(action.microbatch.epoch.step)
            return runner.replay(x[0], action.weight, **given, draw=draw, number=number)

        def computed(of_input: Tensor | None) -> None:
            if of_input is None:
                self._driver.post(Replayed(action.microbatch, action.weight))
            else:
                event = partial(Replayed, action.microbatch, action.weight)
                self._encode(action.microbatch, of_input, event, "gradient")

        direction: Direction = "recompute" if action.weight == 0 else "replay" if action.weight > 0 else "undo"
        self._decode(action.microbatch, direction, decode, compute, computed)

    def discard(self, action: Discard) -> None:
        """Discard a hop that another peer computes: its graph now, queued work when its turn comes."""
        self._discards[action.microbatch] += 1
        runner = self._serving().runner(action.microbatch.epoch.step)
        self._compute.submit(_FIRST, lambda: runner.drop(action.microbatch), lambda _: None)

    def reset(self, action: Reset) -> None:
        """Begin an epoch with nothing accumulated."""
        self._run += 1
        self._discards.clear()
        self._account.void()
        self.end.begin()
        served = self._serving()

        def work() -> None:
            for runner in served.runners:
                runner.begin(EXPONENT, action.careful)
            served.runner(served.version).begin(action.exponent, action.careful)

        self._compute.submit(_FIRST, work, lambda _: None)

    def unload(self) -> None:
        """Stop serving: running work is dropped, and is in no commit."""
        self._run += 1
        self._account.void()
        self.served = None

    def evaluate(self, message: Evaluate, bodies: list[memoryview], done: Callable[[Evaluated], None]) -> None:
        """Forward only, between steps: hand `done` the activation in wire form, (sum of losses, tokens), or an error.

        A request that does not fit the served stage is not answered; the asker has a deadline.
        """
        served = self.served
        fits = len(bodies) == 2 and 1 <= message.rows <= self.manifest.microbatch_sequences
        if served is None or served.version != message.version or not fits:
            return

        def work() -> Evaluated:
            try:
                x = self._input(served.stage, bodies[0], message.rows)
                targets = self._targets(bodies[1], message.rows)
            except FrameError as error:
                return error
            runner = served.runner(message.version + 1)
            if served.stage.last:
                loss = runner.evaluate(x, targets)
                assert isinstance(loss, tuple)
                return loss
            output = runner.evaluate(x)
            assert isinstance(output, Tensor)
            return self._codec.encode(output.to(self._dtype))

        def guarded() -> Evaluated:
            try:
                return work()
            except Exception as error:  # only the asker pays for a request that cannot be computed
                log.exception("a validation batch of %s could not be computed", message.asker[-6:])
                return FrameError(f"it could not be computed ({type(error).__name__})")

        self._compute.submit(_LATER, guarded, done)

    # --- details ------------------------------------------------------------------------------------------------------

    def _serving(self) -> Served:
        if self.served is None:
            raise RuntimeError("no stage is loaded")
        return self.served

    def _decode(
        self,
        microbatch: Microbatch,
        direction: Direction,
        decode: Callable[[Stage], X],
        compute: Callable[[Served, X], Y],
        done: Callable[[Y], None],
    ) -> None:
        """Codec thread, then compute thread, then `done` on the loop, unless the epoch is over by then."""
        run, discards = self._run, self._discards[microbatch]
        _Computation(
            microbatch,
            direction,
            self._serving(),
            decode,
            compute,
            done,
            is_current=lambda: run == self._run,
            is_wanted=lambda: run == self._run and discards == self._discards[microbatch],
        ).begin(self._codec_thread, self._compute, self._driver, self._account)

    def _encode(self, microbatch: Microbatch, tensor: Tensor, event: Callable[[Ref], Event], value: str) -> None:
        """Encode a tensor, unless it is not finite. value: its name in the report."""
        run = self._run

        def encode() -> Buffer | None:
            sent = tensor.detach().to(self._dtype)  # which may turn a finite value into an infinite one
            return self._codec.encode(sent) if finite(sent) else None

        def encoded(buffer: Buffer | None) -> None:
            if run != self._run:
                return
            if buffer is None:
                self._driver.post(ComputedNotFinite(microbatch.epoch, microbatch.index, value))
            else:
                self._codec_bytes.at(value, "plain").inc(tensor.numel() * self._dtype.itemsize)
                self._codec_bytes.at(value, "encoded").inc(len(buffer))
                self._driver.post(event(self._driver.store.add(buffer)))

        self._codec_thread.submit(_FIRST, encode, encoded)

    def _input(self, stage: Stage, data: Buffer, rows: int | None = None) -> Tensor:
        return self._targets(data, rows) if stage.first else self._boundary_tensor(stage, data, rows)

    def _targets(self, data: Buffer, rows: int | None = None) -> Tensor:
        shape = (rows or self.manifest.microbatch_sequences, self.manifest.seq_len)
        return decode_tokens(data, shape, self.manifest.vocab_size)

    def _boundary_tensor(self, stage: Stage, data: Buffer, rows: int | None = None) -> Tensor:
        shape = (rows or self.manifest.microbatch_sequences, self.manifest.seq_len, self.manifest.hidden_size)
        tensor = self._codec.decode(data, shape, self._dtype, stage.device)
        if not finite(tensor):  # the computing peer reports such a value instead of sending it
            raise FrameError("a tensor with a value that is not finite came")
        return tensor

    def _number(self, microbatch: Microbatch) -> int:
        """Return the number of a microbatch over all steps."""
        return microbatch.epoch.step * self.manifest.microbatches + microbatch.index

    def _draw(self, microbatch: Microbatch) -> DrawKey | None:
        if not self.manifest.dropout:
            return None
        return DrawKey(self.manifest.seed, microbatch.epoch.step, microbatch.index)


@dataclass(frozen=True, slots=True)
class _Computation(Generic[X, Y]):
    """A pass of a microbatch through the served stage, in either direction."""

    microbatch: Microbatch
    direction: Direction
    served: Served
    decode: Callable[[Stage], X]  # from the wire, in the codec thread
    compute: Callable[[Served, X], Y]  # in the compute thread
    done: Callable[[Y], None]  # on the event loop
    is_current: Callable[[], bool]  # whether its epoch is still the present one
    is_wanted: Callable[[], bool]  # the same, and no other peer computes the microbatch instead

    def begin(self, codec: Worker, compute: Worker, driver: Driver, account: Account) -> None:
        """Queue it; whatever is not current any more on its way is dropped."""

        def decoded(value: X | ComputeFailed) -> None:
            if not self.is_current():
                return
            if isinstance(value, ComputeFailed):
                driver.post(value)
                return
            tensor: X = value
            compute.submit(self._urgency, lambda: self._work(tensor), finished)

        def finished(outcome: tuple[Y, float] | Failure | None) -> None:
            if isinstance(outcome, Failure):
                if self.is_current():
                    driver.post(outcome)
            elif outcome is not None:
                self._finish(*outcome, driver, account)

        codec.submit(_FIRST, self._decode, decoded)

    @property
    def _urgency(self) -> tuple[float, float, float, float]:
        direction = _FORWARD if self.direction in ("forward", "loss") else _BACKWARD
        return _PASSES, float(self.microbatch.epoch.step), direction, float(self.microbatch.index)

    def _decode(self) -> X | ComputeFailed:
        try:
            return self.decode(self.served.stage)
        except FrameError as error:
            return ComputeFailed(self.microbatch, str(error))

    def _work(self, value: X) -> tuple[Y, float] | Failure | None:
        if not self.is_wanted():
            return None
        began_s = self.served.clock()
        try:
            result = self.compute(self.served, value)
        except ExponentOverflowError:
            return Overflowed(self.microbatch)
        except NotFiniteError as error:
            return ComputedNotFinite(self.microbatch.epoch, self.microbatch.index, error.value, error.layer)
        return result, self.served.clock() - began_s

    def _finish(self, result: Y, seconds: float, driver: Driver, account: Account) -> None:
        driver.metrics.compute_seconds.at(self.direction).inc(seconds)
        driver.metrics.pass_seconds.at(self.direction).observe(seconds)
        driver.metrics.microbatches.at(self.served.stage.layout.stage, self.direction).inc()
        if not self.is_current():
            account.wasted(seconds)
            return
        account.spent(self.microbatch, self.direction, seconds)
        self.done(result)
