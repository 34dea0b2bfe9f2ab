"""What a peer computes: its stage on its device, done in worker threads as the machine's actions ask."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from swarmflow.compute.codec import codec_named, decode_ints
from swarmflow.compute.dropout import DrawKey
from swarmflow.compute.exact import Overflow
from swarmflow.compute.flat import digest, memory_of
from swarmflow.compute.optimizer import Optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import Stage
from swarmflow.compute.stage_state import StageState
from swarmflow.core.actions import (
    Apply,
    Discard,
    Reset,
    RunBackward,
    RunForward,
    RunLoss,
    RunReplay,
    Seal,
    StorePiece,
    SumPiece,
)  # fmt: skip
from swarmflow.core.events import (
    Applied,
    BackwardComputed,
    ComputeFailed,
    Event,
    ForwardComputed,
    LossComputed,
    Overflowed,
    PieceReduced,
    Replayed,
    Sealed,
)  # fmt: skip
from swarmflow.core.types import Microbatch, Ref, Slice
from swarmflow.errors import FrameError
from swarmflow.manifest import Manifest
from swarmflow.runtime.account import Account, Direction
from swarmflow.runtime.driver import Driver
from swarmflow.runtime.store import Buffer
from swarmflow.runtime.wire import Evaluate
from swarmflow.runtime.worker import Worker

# Urgency in the compute thread: a backward frees memory and feeds the stage before; a forward only adds work.
_FIRST, _BACKWARD, _FORWARD, _LATER = (0.0,), 1.0, 2.0, (3.0,)

X = TypeVar("X")
Y = TypeVar("Y")
Evaluated = memoryview | tuple[float, int] | FrameError


@dataclass
class Served:
    """A stage in memory. version: of its weights. reduced: summed gradients of a ballot, by flat group."""

    stage: Stage
    runner: StageRunner
    optimizer: Optimizer
    state: StageState
    version: int
    reduced: dict[str, Tensor] = field(default_factory=dict)


class StageHost:
    """Runs the actions of a peer's machine that compute.

    Two threads: `compute` runs the stage; `codec` turns wire bytes into tensors and back beside it. What belongs to an
    epoch that is over (Reset) is dropped wherever it is.
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
        self._account = Account(lambda outcome, seconds: settled.at(outcome).inc(seconds))

    def effects(self) -> dict[type[Any], Callable[[Any], None]]:
        """Which action is done by which method."""
        return {
            RunForward: self.run_forward, RunLoss: self.run_loss, RunBackward: self.run_backward,
            RunReplay: self.run_replay, Discard: self.discard, Reset: self.reset, SumPiece: self.sum_piece,
            StorePiece: self.store_piece, Seal: self.seal, Apply: self.apply,
        }  # fmt: skip

    async def warm_up(self) -> None:
        """Use the codec once: what it imports then takes seconds, which a step should not wait for."""
        await self._codec_thread.call(_FIRST, lambda: self._codec.encode(torch.zeros(1, 1)))

    # --- microbatches -------------------------------------------------------------------------------------------------

    def run_forward(self, action: RunForward) -> None:
        """Decode, forward, encode."""
        data = self._driver.store.get(action.input)

        def computed(output: Tensor) -> None:
            self._encode(output, lambda ref: ForwardComputed(action.microbatch, ref))

        def compute(served: Served, x: Tensor) -> Tensor:
            draw = self._draw(action.microbatch)
            runner = served.runner
            return runner.forward(action.microbatch, x, draw) if action.keep else runner.recompute(x, draw)

        direction: Direction = "recompute" if action.again else "forward"
        self._decode(action.microbatch, direction, lambda stage: self._input(stage, data), compute, computed)

    def run_loss(self, action: RunLoss) -> None:
        """Decode, forward, loss, backward, encode."""
        data, targets = self._driver.store.get(action.input), self._driver.store.get(action.targets)

        def compute(served: Served, x: tuple[Tensor, Tensor]) -> tuple[float, int, Tensor | None]:
            return served.runner.loss(action.microbatch, x[0], x[1], self._draw(action.microbatch))

        def computed(result: tuple[float, int, Tensor | None]) -> None:
            loss_sum, tokens, gradient = result
            if gradient is None:
                self._driver.post(LossComputed(action.microbatch, loss_sum, tokens, None))
            else:
                self._encode(gradient, lambda ref: LossComputed(action.microbatch, loss_sum, tokens, ref))

        self._decode(
            action.microbatch, "loss", lambda stage: (self._input(stage, data), self._targets(targets)),
            compute, computed,
        )  # fmt: skip

    def run_backward(self, action: RunBackward) -> None:
        """Decode, backward, encode."""
        data = self._driver.store.get(action.gradient)

        def computed(gradient: Tensor | None) -> None:
            if gradient is None:
                self._driver.post(BackwardComputed(action.microbatch, None))
            else:
                self._encode(gradient, lambda ref: BackwardComputed(action.microbatch, ref))

        self._decode(
            action.microbatch, "backward", lambda stage: self._boundary_tensor(stage, data),
            lambda served, x: served.runner.backward(action.microbatch, x), computed,
        )  # fmt: skip

    def run_replay(self, action: RunReplay) -> None:
        """Decode, forward, backward; encode, where the gradient of the input is what is wanted."""
        store, draw = self._driver.store, self._draw(action.microbatch)
        data, targets = store.get(action.input), store.get(action.targets)
        gradient = None if action.gradient is None else store.get(action.gradient)

        def decode(stage: Stage) -> tuple[Tensor, Tensor]:
            given = self._targets(targets) if gradient is None else self._boundary_tensor(stage, gradient)
            return self._input(stage, data), given

        def compute(served: Served, x: tuple[Tensor, Tensor]) -> Tensor | None:
            given = {"targets" if gradient is None else "grad": x[1]}
            return served.runner.replay(x[0], action.weight, **given, draw=draw)

        def computed(of_input: Tensor | None) -> None:
            if of_input is None:
                self._driver.post(Replayed(action.microbatch, action.weight))
            else:
                self._encode(of_input, lambda ref: Replayed(action.microbatch, action.weight, ref))

        direction: Direction = "recompute" if action.weight == 0 else "replay" if action.weight > 0 else "undo"
        self._decode(action.microbatch, direction, decode, compute, computed)

    def discard(self, action: Discard) -> None:
        """Another peer does this hop: what of it is queued is dropped when its turn comes, and its graph now."""
        self._discards[action.microbatch] += 1
        served = self._serving()
        self._compute.submit(_FIRST, lambda: served.runner.drop(action.microbatch), lambda _: None)

    def reset(self, action: Reset) -> None:
        """A new epoch begins with nothing accumulated."""
        self._run += 1
        self._discards.clear()
        self._account.void()
        served = self._serving()
        self._compute.submit(_FIRST, lambda: served.runner.begin(action.exponent), lambda _: None)

    def unload(self) -> None:
        """Serve nothing any more: what is under way is dropped, and is in no commit."""
        self._run += 1
        self._account.void()
        self.served = None

    def evaluate(self, message: Evaluate, bodies: list[memoryview], done: Callable[[Evaluated], None]) -> None:
        """Forward only, between steps: hand `done` the activation in wire form, (sum of losses, tokens), or an error.

        A question that does not fit what is served is not answered; who asks has a deadline.
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
            if served.stage.last:
                loss = served.runner.evaluate(x, targets)
                assert isinstance(loss, tuple)
                return loss
            output = served.runner.evaluate(x)
            assert isinstance(output, Tensor)
            return self._codec.encode(output.to(self._dtype))

        self._compute.submit(_LATER, work, done)

    # --- a step's end -------------------------------------------------------------------------------------------------

    def read(self, body: Slice) -> Callable[[], Buffer]:
        """A part of a flat gradient, fetched when its turn to be sent comes."""
        served = self._serving()
        name = _flat_name(body.group)
        flat = served.reduced[name] if body.reduced else served.stage.groups[name].summed
        return lambda: memory_of(flat[body.start : body.stop].cpu())

    def sum_piece(self, action: SumPiece) -> None:
        """Add the members' parts in rank order into the reduced buffer, or apart from it for another stage."""
        if action.apart:
            return self._sum_apart(action)
        served, name = self._serving(), _flat_name(action.group)
        buffers = [None if part is None else self._driver.store.get(part) for part in action.parts]
        own = served.stage.groups[name].summed[action.start : action.stop]
        target = self._reduced(served, name)[action.start : action.stop]

        def work() -> None:
            for rank, buffer in enumerate(buffers):
                part = own if buffer is None else _elements(buffer, own)
                if rank == 0:
                    target.copy_(part)
                else:
                    target.add_(part)

        self._compute.submit(_FIRST, work, lambda _: self._piece_reduced(action))

    def _sum_apart(self, action: SumPiece) -> None:
        like = self._serving().stage.groups["own"].summed
        buffers = [self._driver.store.get(part) for part in action.parts if part is not None]

        def work() -> Tensor:
            total = _numbers(buffers[0], like).clone()
            for buffer in buffers[1:]:
                total.add_(_numbers(buffer, like))
            return total.cpu()

        def done(total: Tensor) -> None:
            ref = self._driver.store.add(memory_of(total))
            self._driver.post(PieceReduced(action.epoch, action.ballot, action.group, action.piece, ref))

        self._compute.submit(_FIRST, work, done)

    def store_piece(self, action: StorePiece) -> None:
        """Copy a sum from its owner into the reduced buffer."""
        served, name = self._serving(), _flat_name(action.group)
        target = self._reduced(served, name)[action.start : action.stop]
        buffer = self._driver.store.get(action.sum)

        def work() -> None:
            target.copy_(_elements(buffer, target))

        def done(_: None) -> None:
            self._driver.store.release((action.sum,))
            self._piece_reduced(action)

        self._compute.submit(_FIRST, work, done)

    def seal(self, action: Seal) -> None:
        """Norm and digest of every reduced gradient."""
        served = self._serving()
        for group in action.alone:
            served.reduced.pop(_flat_name(group), None)
        # Taken now: the next ballot may have other members, and buffers, before the thread comes to this one.
        sealed = [(group, served.stage.groups[_flat_name(group)]) for group in action.groups]
        flats = [flat.summed if name in action.alone else served.reduced[_flat_name(name)] for name, flat in sealed]

        def work() -> tuple[tuple[str, float, str], ...]:
            pairs = zip(sealed, flats, strict=True)
            return tuple((name, group.sum_of_squares(flat), digest(flat)) for (name, group), flat in pairs)

        post = self._driver.post
        self._compute.submit(_FIRST, work, lambda results: post(Sealed(action.epoch, action.ballot, results)))

    def apply(self, action: Apply) -> None:
        """The optimizer's update; then the accumulators are empty again."""
        served = self._serving()
        self._account.committed()

        def work() -> str:
            served.version = -1  # neither the old nor the new one: nobody should be given a mixture
            for name, group in served.stage.groups.items():
                gradient = group.gradient(served.reduced.get(name, group.summed))
                served.optimizer.apply(group, gradient, action.scale, action.learning_rate, action.epoch.step)
            served.reduced.clear()
            served.runner.weights_written()
            served.runner.clear()
            served.version = action.epoch.step + 1
            return digest([group.params for group in served.stage.groups.values()])

        self._compute.submit(_FIRST, work, lambda name: self._driver.post(Applied(action.epoch, name)))

    # --- details ------------------------------------------------------------------------------------------------------

    def _serving(self) -> Served:
        if self.served is None:
            raise RuntimeError("no stage is loaded")
        return self.served

    def _decode(
        self, microbatch: Microbatch, direction: Direction, decode: Callable[[Stage], X],
        compute: Callable[[Served, X], Y], done: Callable[[Y], None],
    ) -> None:  # fmt: skip
        """Codec thread, then compute thread, then `done` on the loop, unless the epoch is over by then."""
        run, served, discards = self._run, self._serving(), self._discards[microbatch]

        def guarded() -> X | ComputeFailed:
            try:
                return decode(served.stage)
            except FrameError as error:
                return ComputeFailed(microbatch, str(error))

        def decoded(value: X | ComputeFailed) -> None:
            if run != self._run:
                return
            if isinstance(value, ComputeFailed):
                self._driver.post(value)
                return
            tensor: X = value
            urgency = (_FORWARD if direction in ("forward", "loss") else _BACKWARD, float(microbatch.index))
            self._compute.submit(urgency, lambda: work(tensor), finished)

        def work(value: X) -> tuple[Y, float] | Overflowed | None:
            if run != self._run or discards != self._discards[microbatch]:
                return None
            # On a CPU the thread's own time: a process that is frozen, or waits for its turn, does not compute.
            clock = time.thread_time if served.stage.device.type == "cpu" else time.monotonic
            began_s = clock()
            try:
                result = compute(served, value)
            except Overflow as error:
                return Overflowed(microbatch, error.finite)
            return result, clock() - began_s

        def finished(outcome: tuple[Y, float] | Overflowed | None) -> None:
            if outcome is None:
                return
            if isinstance(outcome, Overflowed):
                if run == self._run:
                    self._driver.post(outcome)
                return
            result, seconds = outcome
            self._driver.metrics.compute_seconds.at(direction).inc(seconds)
            self._driver.metrics.microbatches.at(served.stage.layout.stage, direction).inc()
            if run != self._run:
                self._account.wasted(seconds)
                return
            self._account.spent(microbatch, direction, seconds)
            done(result)

        self._codec_thread.submit(_FIRST, guarded, decoded)

    def _encode(self, tensor: Tensor, event: Callable[[Ref], Event]) -> None:
        run = self._run

        def encoded(buffer: Buffer) -> None:
            if run == self._run:
                self._driver.post(event(self._driver.store.add(buffer)))

        self._codec_thread.submit(_FIRST, lambda: self._codec.encode(tensor.detach().to(self._dtype)), encoded)

    def _input(self, stage: Stage, data: Buffer, rows: int | None = None) -> Tensor:
        return self._targets(data, rows) if stage.first else self._boundary_tensor(stage, data, rows)

    def _targets(self, data: Buffer, rows: int | None = None) -> Tensor:
        shape = (rows or self.manifest.microbatch_sequences, self.manifest.seq_len)
        return decode_ints(data, shape, self.manifest.vocab_size)

    def _boundary_tensor(self, stage: Stage, data: Buffer, rows: int | None = None) -> Tensor:
        shape = (rows or self.manifest.microbatch_sequences, self.manifest.seq_len, self.manifest.hidden_size)
        return self._codec.decode(data, shape, self._dtype, stage.device)

    def _draw(self, microbatch: Microbatch) -> DrawKey | None:
        if not self.manifest.dropout:
            return None
        return DrawKey(self.manifest.seed, microbatch.epoch.step, microbatch.index)

    def _reduced(self, served: Served, name: str) -> Tensor:
        if name not in served.reduced:
            served.reduced[name] = torch.empty_like(served.stage.groups[name].summed)
        return served.reduced[name]

    def _piece_reduced(self, action: SumPiece | StorePiece) -> None:
        self._driver.post(PieceReduced(action.epoch, action.ballot, action.group, action.piece))


def _flat_name(group: str) -> str:
    """The flat buffer of a reduction group."""
    return "tied" if group == "tied" else "own"


def _elements(buffer: Buffer, like: Tensor) -> Tensor:
    """Bytes from the network as a tensor of the kind of another. Raises FrameError when the size is another."""
    if len(buffer) != like.nbytes:
        raise FrameError(f"a piece has {len(buffer)} bytes, not {like.nbytes}")
    return _numbers(buffer, like)


def _numbers(buffer: Buffer, like: Tensor) -> Tensor:
    """Bytes as numbers of the type of another tensor, where that one is."""
    return torch.frombuffer(buffer, dtype=like.dtype).to(like.device)
