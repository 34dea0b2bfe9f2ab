"""Computes a peer's stage on its device, in worker threads, as the machine's actions ask."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from swarmflow.compute.codec import Codec, Encoding
from swarmflow.compute.device_layer import DeviceLayer, HostLayer, Launched, StreamName
from swarmflow.compute.device_work import DeviceWork, LossSum
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.grouped_stage import GroupedStage, StageInput
from swarmflow.compute.topk import codec_of, kept_share_of
from swarmflow.core.protocol.actions import DEFERRED_MIN, Discard, Reset, RunBackward, RunForward, RunLoss, RunReplay
from swarmflow.core.protocol.events import (
    BackwardComputed,
    ComputedNotFinite,
    Event,
    ForwardComputed,
    InputGradientComputed,
    LossComputed,
    Replayed,
)
from swarmflow.core.protocol.types import RUN_ELEMENTS, Microbatch, Ref
from swarmflow.errors import FrameError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.account import Account, Direction
from swarmflow.runtime.execution.computation import FIRST, LATER, Computation, Workplace
from swarmflow.runtime.execution.driver import Driver
from swarmflow.runtime.execution.microbatch_format import format_of
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.execution.step_end import StepEnd
from swarmflow.runtime.execution.store import Buffer
from swarmflow.runtime.execution.worker import Worker
from swarmflow.runtime.transport.wire import Evaluate

log = logging.getLogger("swarmflow")

# A backward pass that takes so long gives the gradient of its input before it computes those of the parameters. Finding
# the two parts in the graph takes about a millisecond.
SPLIT_MIN_S = 0.05

X = TypeVar("X")
Y = TypeVar("Y")
Validity = tuple[Callable[[], bool], Callable[[], bool]]  # whether its epoch is the present one; and it is wanted
Evaluated = Buffer | tuple[float, int] | FrameError


def nothing() -> None:
    """Do nothing more."""


def raised(error: Exception) -> Any:  # noqa: ANN401  # it returns nothing at all
    """Raise an error of which nothing can be made."""
    raise error


class StageHost:
    """Runs the actions of a peer's machine that compute.

    Two threads: `compute` runs the stage; `codec` turns wire bytes into tensors and back in parallel. Work of an epoch
    that is over (Reset) is dropped in either. layer: of the stage's device; on one that computes beside the host
    neither thread waits for it, and what a pass gives is reported when the event behind it has fired.
    """

    def __init__(
        self, manifest: Manifest, driver: Driver, compute: Worker, codec: Worker, layer: DeviceLayer | None = None
    ) -> None:
        self.manifest = manifest
        self.served: Served | None = None
        self._driver = driver
        self._compute = compute
        self._codec_thread = codec
        self._kept: tuple[int, ...] = ()  # of 256 numbers, at each boundary, in this step
        self._format = format_of(manifest)
        self._run = 0
        self._discards: Counter[Microbatch] = Counter()  # of two steps: nothing is queued of earlier ones
        self._whole_s = 0.0  # that a backward pass took in one part
        self._deferred_max = DEFERRED_MIN
        # What is left of passes, the oldest first.
        self._deferred: dict[Microbatch, Computation[None, None]] = {}
        settled = driver.metrics.settled_seconds
        self._codec_bytes = driver.metrics.codec_bytes
        self._account = Account(lambda outcome, seconds: settled.at(outcome).inc(seconds))
        self._layer = layer or HostLayer()
        self._workplace = Workplace(self._layer, compute, codec, driver, self._account)
        self.end = StepEnd(driver, compute, self._serving, lambda served: served is self.served, self._account)

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
        zeros = torch.zeros(1, 1, device=self._layer.device)
        await self._codec_thread.call(FIRST, lambda: codec_of(self.manifest.codec, RUN_ELEMENTS).encode(zeros))

    # --- microbatches -------------------------------------------------------------------------------------------------

    def run_forward(self, action: RunForward) -> None:
        """Decode, forward, encode."""
        self._defer(action.deferred_max)
        store, codec = self._driver.store, self._codec(before=True)
        data, targets = store.get(action.input), store.get(action.targets)

        def computed(output: Tensor) -> None:
            self._encode(action.microbatch, output, lambda ref: ForwardComputed(action.microbatch, ref), "activation")

        def compute(served: Served, x: StageInput, work: DeviceWork) -> Tensor:
            draw = self._draw(served, action.microbatch)
            runner = served.runner(action.microbatch.epoch.step)
            return runner.forward(action.microbatch, x, draw) if action.keep else runner.recompute(x, draw)

        direction: Direction = "recompute" if action.again else "forward"

        def decode(stage: GroupedStage, work: DeviceWork) -> StageInput:
            return self._format.input(stage, data, targets, codec, work=work)

        self._decode(action.microbatch, direction, decode, compute, computed)

    def run_loss(self, action: RunLoss) -> None:
        """Decode, forward, loss, backward, encode."""
        data, targets = self._driver.store.get(action.input), self._driver.store.get(action.targets)
        microbatch, validity, codec = action.microbatch, self._validity(action.microbatch), self._codec(before=True)
        self._defer(action.deferred_max)

        def decode(stage: GroupedStage, work: DeviceWork) -> tuple[StageInput, Tensor]:
            return self._format.input(stage, data, targets, codec, work=work), self._format.targets(targets)

        def compute(
            served: Served, x: tuple[StageInput, Tensor], work: DeviceWork
        ) -> tuple[LossSum, int, Tensor | None, bool]:
            runner, how = (
                served.runner(microbatch.epoch.step),
                (self._draw(served, microbatch), self._number(microbatch)),
            )
            found = runner.launch_loss(microbatch, *x, *how, defer=self._in_parts, work=work)
            return *found, runner.unfinished(microbatch)

        def computed(result: tuple[LossSum, int, Tensor | None, bool]) -> None:
            loss_sum, tokens, gradient, unfinished = result
            event = partial(LossComputed, microbatch, loss_sum.value, tokens)
            self._tell(microbatch, gradient, event, validity if unfinished else None)

        self._decode(microbatch, "loss", decode, compute, computed, self._timed)

    def run_backward(self, action: RunBackward) -> None:
        """Decode, backward, encode."""
        data, number = self._driver.store.get(action.gradient), self._number(action.microbatch)
        microbatch, validity, codec = action.microbatch, self._validity(action.microbatch), self._codec(before=False)
        self._defer(action.deferred_max)

        def compute(served: Served, x: Tensor, work: DeviceWork) -> tuple[Tensor | None, bool]:
            runner = served.runner(microbatch.epoch.step)
            found = runner.backward(microbatch, x, number, defer=self._in_parts, work=work)
            return found, runner.unfinished(microbatch)

        def computed(result: tuple[Tensor | None, bool]) -> None:
            gradient, unfinished = result
            self._tell(microbatch, gradient, partial(BackwardComputed, microbatch), validity if unfinished else None)

        def decode(stage: GroupedStage, work: DeviceWork) -> Tensor:
            return self._format.gradient(stage, data, codec, work)

        self._decode(microbatch, "backward", decode, compute, computed, self._timed)

    @property
    def _in_parts(self) -> bool:
        """Whether a pass takes long enough for it to pay to run it in two parts."""
        return self._whole_s >= SPLIT_MIN_S

    def _timed(self, seconds: float) -> None:
        """Record the time of a pass in one part; of one in two parts it is that of the first, and says nothing."""
        if not self._in_parts:
            self._whole_s = seconds

    def _tell(
        self,
        microbatch: Microbatch,
        gradient: Tensor | None,
        event: Callable[[Ref | None], Event],
        unfinished: Validity | None,
    ) -> None:
        """Encode the gradient of the input, and report the pass; an unfinished one when it is finished."""
        if gradient is None:
            self._driver.post(event(None))
        elif unfinished is None:
            self._encode(microbatch, gradient, event, "gradient")
        else:
            early = partial(InputGradientComputed, microbatch)
            self._encode(microbatch, gradient, early, "gradient", partial(self._finish, microbatch, event, unfinished))

    def _finish(self, microbatch: Microbatch, event: Callable[[Ref | None], Event], validity: Validity) -> None:
        """Compute the parameters' gradients of a pass when nothing else waits; where too many wait, the oldest ones."""
        served, number = self._serving(), self._number(microbatch)
        runner = served.runner(microbatch.epoch.step)
        is_current, is_wanted = validity

        def is_left() -> bool:  # it is queued once more where it has become urgent
            return is_wanted() and runner.unfinished(microbatch)

        def compute(served: Served, nothing: None, work: DeviceWork) -> None:
            runner.finish(microbatch, number, work)

        def computed(nothing: None) -> None:
            self._deferred.pop(microbatch, None)
            self._driver.post(event(None))

        rest = Computation(microbatch, "weights", served, compute, computed, is_current, is_left)
        self._deferred[microbatch] = rest
        rest.begin(None, self._workplace)
        self._defer(None)

    def _defer(self, deferred_max: int | None) -> None:
        """Let no more passes than these wait for the gradients of their parameters; None: no more than before."""
        self._deferred_max = self._deferred_max if deferred_max is None else deferred_max
        for oldest in list(self._deferred.values())[: -self._deferred_max]:
            replace(oldest, urgent=True).begin(None, self._workplace)

    def run_replay(self, action: RunReplay) -> None:
        """Decode, forward, backward; encode, where the gradient of the input is needed."""
        self._defer(action.deferred_max)
        store = self._driver.store
        data, targets = store.get(action.input), store.get(action.targets)
        gradient = None if action.gradient is None else store.get(action.gradient)
        before, after = self._codec(before=True), self._codec(before=False)

        def decode(stage: GroupedStage, work: DeviceWork) -> tuple[StageInput, Tensor]:
            if gradient is None:
                given = self._format.targets(targets)
            else:
                given = self._format.gradient(stage, gradient, after, work)
            return self._format.input(stage, data, targets, before, work=work), given

        def compute(served: Served, x: tuple[StageInput, Tensor], work: DeviceWork) -> Tensor | None:
            given = {"targets" if gradient is None else "grad": x[1]}
            draw, number = self._draw(served, action.microbatch), self._number(action.microbatch)
            runner = served.runner(action.microbatch.epoch.step)
            return runner.replay(x[0], action.weight, **given, draw=draw, number=number, work=work)

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
        self._discards = Counter({m: n for m, n in self._discards.items() if m.epoch >= action.microbatch.epoch.former})
        self._discards[action.microbatch] += 1
        self._deferred.pop(action.microbatch, None)
        runner = self._serving().runner(action.microbatch.epoch.step)
        self._compute.submit(FIRST, lambda: runner.drop(action.microbatch), lambda _: None)

    def reset(self, action: Reset) -> None:
        """Begin an epoch with nothing accumulated."""
        self._run += 1
        self._discards.clear()
        self._deferred.clear()
        self._account.void()
        self.end.begin()
        self._kept = action.kept
        served, kept_share = self._serving(), kept_share_of(self._codec(before=True))

        def work() -> None:
            served.reduced.clear()  # blockwise sums of a first step are on the grid that its exponent gives
            for runner in served.runners:
                runner.begin(EXPONENT, action.careful)
            served.runner(served.version).begin(action.exponent, action.careful, kept_share=kept_share)

        self._compute.submit(FIRST, work, lambda _: None)

    def unload(self) -> None:
        """Stop serving: running work is dropped, and is in no commit."""
        self._run += 1
        self._account.void()
        self.served = None

    def evaluate(self, message: Evaluate, bodies: list[memoryview], done: Callable[[Evaluated], None]) -> None:
        """Forward only, between steps: hand `done` the activation in wire form, (sum of losses, tokens), or an error.

        The message fits the served stage.
        """
        served, codec = self._serving(), codec_of(self.manifest.codec, RUN_ELEMENTS)

        def body(work: DeviceWork) -> Encoding | tuple[LossSum, int]:
            if served.version != message.version:
                raise FrameError(f"version {message.version} is over")
            x = self._format.input(served.stage, bodies[0], bodies[1], codec, message.rows, work)
            runner = served.runner(message.version + 1)
            if served.stage.last:
                loss = runner.evaluate(x, self._format.targets(bodies[1], message.rows), work)
                assert isinstance(loss, tuple)
                return loss
            output = runner.evaluate(x)
            assert isinstance(output, Tensor)
            return self._format.encode(served.stage, output, codec, work)

        def evaluated(found: Encoding | tuple[LossSum, int], seconds: float) -> Evaluated:
            if isinstance(found, tuple):
                return found[0].value, found[1]
            return found.wire if found.wire is not None else FrameError("an activation is not finite")

        def failed(error: Exception) -> Evaluated:
            if isinstance(error, FrameError):
                return error
            # Only the asker pays for a request that cannot be computed.
            log.error("a validation batch of %s could not be computed", message.asker[-6:], exc_info=error)
            return FrameError(f"it could not be computed ({type(error).__name__})")

        self._compute.launch(LATER, lambda: self._layer.run(StreamName.COMPUTE, body, evaluated, failed), done)

    # --- details ------------------------------------------------------------------------------------------------------

    def _serving(self) -> Served:
        if self.served is None:
            raise RuntimeError("no stage is loaded")
        return self.served

    def _decode(
        self,
        microbatch: Microbatch,
        direction: Direction,
        decode: Callable[[GroupedStage, DeviceWork], X],
        compute: Callable[[Served, X, DeviceWork], Y],
        done: Callable[[Y], None],
        timed: Callable[[float], None] | None = None,
    ) -> None:
        """Codec thread, then compute thread, then `done` on the loop, unless the epoch is over by then."""
        validity = self._validity(microbatch)
        computation = Computation(microbatch, direction, self._serving(), compute, done, *validity, timed=timed)
        computation.decode(decode, self._workplace)

    def _validity(self, microbatch: Microbatch) -> Validity:
        """Return whether the epoch of this moment is the present one, and whether the microbatch is wanted too."""
        run, discards = self._run, self._discards[microbatch]
        return lambda: run == self._run, lambda: run == self._run and discards == self._discards[microbatch]

    def _encode(
        self,
        microbatch: Microbatch,
        tensor: Tensor,
        event: Callable[[Ref], Event],
        value: str,
        then: Callable[[], None] = nothing,
    ) -> None:
        """Encode a tensor, unless it is not finite. value: its name in the report. then: called after the event."""
        run, codec, stage = self._run, self._codec(before=value == "gradient"), self._serving().stage

        def body(work: DeviceWork) -> Encoding:
            return self._format.encode(stage, tensor, codec, work)

        def encode() -> Launched[Buffer | None]:
            return self._layer.run(StreamName.COPY_OUT, body, lambda encoding, _: encoding.wire, raised)

        def encoded(buffer: Buffer | None) -> None:
            if run != self._run:
                return
            if buffer is None:
                self._driver.post(ComputedNotFinite(microbatch.epoch, microbatch.index, value))
            else:
                self._codec_bytes.at(value, "plain").inc(tensor.numel() * self._format.dtype.itemsize)
                self._codec_bytes.at(value, "encoded").inc(len(buffer))
                self._driver.post(event(self._driver.store.add(buffer)))
                then()

        self._codec_thread.launch(FIRST, encode, encoded)

    def _codec(self, *, before: bool) -> Codec:
        """Return the codec of a boundary of the stage in the present step: the one before it or the one after it."""
        boundary = self._serving().stage.layout.stage - before
        kept = self._kept[boundary] if 0 <= boundary < len(self._kept) else RUN_ELEMENTS
        return codec_of(self.manifest.codec, kept)

    def _number(self, microbatch: Microbatch) -> int:
        """Return the number of a microbatch over all steps."""
        return microbatch.epoch.step * self.manifest.microbatches + microbatch.index

    def _draw(self, served: Served, microbatch: Microbatch) -> DrawKey | None:
        if not served.stage.dropout:
            return None
        return DrawKey(self.manifest.seed, microbatch.epoch.step, microbatch.index)
