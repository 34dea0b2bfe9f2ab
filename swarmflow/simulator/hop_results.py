"""The results of the hops that a pretended device computes: events, pretended tensors, and sums of gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swarmflow.core.commit.adaptive_compression import byte_share
from swarmflow.core.protocol.actions import RunBackward, RunForward, RunLoss, RunReplay
from swarmflow.core.protocol.events import (
    BackwardComputed,
    ComputeFailed,
    Event,
    ForwardComputed,
    InputGradientComputed,
    LossComputed,
    Replayed,
)
from swarmflow.core.protocol.types import Microbatch, ProcessId, Ref
from swarmflow.simulator.arithmetic import FORGED, ForgedTensor
from swarmflow.simulator.spoiling import SPOILT, spoiling, spoilt

if TYPE_CHECKING:
    from swarmflow.simulator.device import Device
    from swarmflow.simulator.world import World

TOKENS = 10  # of a pretended microbatch


@dataclass(slots=True)
class HopResults:
    """Records what is computed instead of computing it: an accumulated gradient is the set of its microbatches."""

    device: Device
    world: World = field(init=False)
    process: ProcessId = field(init=False)
    careful: bool = field(init=False, default=False)  # every intermediate value is checked: see Reset
    kept: tuple[int, ...] = field(init=False, default=())  # of 256 numbers, at each boundary in this step: see Reset
    # Microbatches whose input is of a process that was not to make it: all that is made of it is.
    _forged: set[Microbatch] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.world, self.process = self.device.world, self.device.process

    def deliver_input_gradient(self, action: RunLoss | RunBackward) -> bool:
        """Deliver the gradient of the input, or the failure; return whether those of the parameters can follow."""
        if self._pretends(action):
            return False
        failure = self._failure(action)
        if failure is None:
            gradient = self._gradient()
            assert gradient is not None, "the first stage has none"
            self.world.deliver(self.process, InputGradientComputed(action.microbatch, gradient))
        else:
            self.world.deliver(self.process, failure)
        return failure is None

    def deliver_sum(self, action: RunLoss | RunBackward) -> None:
        """Deliver the result of a pass whose gradient of the input has been delivered."""
        if not self._pretends(action):
            self.world.deliver(self.process, self._accumulated(action, None))

    def _pretends(self, action: RunForward | RunLoss | RunBackward | RunReplay) -> bool:
        """Return whether it has reported an update that it has not made, with which it would have to be computed."""
        lies = self.process.name in self.world.liars
        return lies and not self.device.stage_weights().computes(action.microbatch.epoch.step)

    def deliver(self, action: RunForward | RunLoss | RunBackward | RunReplay) -> None:
        """Deliver the result of a computation that has ended, or its failure, to the machine."""
        if self._pretends(action):
            return
        event = self._failure(action)
        if event is None:
            event = self._replayed(action) if isinstance(action, RunReplay) else self._computed(action)
        self.world.deliver(self.process, event)

    def _computed(self, action: RunForward | RunLoss | RunBackward) -> Event:
        microbatch, weights = action.microbatch, self.device.stage_weights()
        if isinstance(action, RunForward):
            weights.gradient(microbatch.epoch.step)  # whose parameters it has to be computed with
            self.world.counts["recomputed" if action.again else "forward"] += 1
            size_bytes = self._boundary_bytes(weights.stage, "activation")
            forged = self._forgery(microbatch, action.input)
            (self._forged.discard if forged is None else self._forged.add)(microbatch)
            return ForwardComputed(microbatch, self.world.store(self.process, forged or "activation", size_bytes))
        return self._accumulated(action, self._gradient())

    def _accumulated(self, action: RunLoss | RunBackward, gradient: Ref | None) -> Event:
        microbatch = action.microbatch
        self.device.stage_weights().gradient(microbatch.epoch.step)[microbatch.index] += 1
        self._spoil(action)
        self.world.counts["backward"] += 1
        if isinstance(action, RunLoss):
            return LossComputed(microbatch, float(TOKENS), TOKENS, gradient)
        return BackwardComputed(microbatch, gradient)

    def _replayed(self, action: RunReplay) -> Event:
        microbatch = action.microbatch
        accumulated = self.device.stage_weights().gradient(microbatch.epoch.step)
        if action.weight == 0:
            self.world.counts["recomputed"] += 1
            return Replayed(microbatch, 0, self._gradient())
        accumulated[microbatch.index] += action.weight
        self._spoil(action)
        if accumulated[microbatch.index] == 0:
            del accumulated[microbatch.index]
        self.world.counts["undone" if action.weight < 0 else "backward"] += 1
        return Replayed(microbatch, action.weight, self._gradient() if action.weight > 0 else None)

    def _failure(self, action: RunForward | RunLoss | RunBackward | RunReplay) -> Event | None:
        """Return what is wrong with a computation: its input does not decode, or its result is not finite."""
        share = self.world.settings.unusable
        if share > 0 and self.world.random.random() < share:
            return ComputeFailed(action.microbatch, "it does not decode")
        return spoilt(self.world, self.process, action, self.careful)

    def _spoil(self, action: RunLoss | RunBackward | RunReplay) -> None:
        """Add what shows where a number is not finite, or was made of a tensor of a process that was not to make it."""
        gradient = self.device.stage_weights().gradient(action.microbatch.epoch.step)
        if spoiling(self.world, self.process).hides(self.world.clock.now_s, self.careful):
            gradient[SPOILT] = 1
        refs = (None if isinstance(action, RunBackward) else action.input, getattr(action, "gradient", None))
        forged = any(self._forgery(action.microbatch, ref) is not None for ref in refs)
        if self.world.liars and (forged or (isinstance(action, RunBackward) and action.microbatch in self._forged)):
            gradient[FORGED] += action.weight if isinstance(action, RunReplay) else 1
            if not gradient[FORGED]:
                del gradient[FORGED]

    def _forgery(self, microbatch: Microbatch, ref: Ref | None) -> ForgedTensor | None:
        """Return the content of a body if its maker has not been given the microbatch until now either.

        A liar that was asked for a slot may send its result before it has the input. It is as good as its own.
        """
        content, liars = self.world.hosts[self.process].stored.get(ref.key) if ref else None, self.world.transport.liars
        if liars is None or not isinstance(content, ForgedTensor) or liars.handed.to(content.maker, microbatch):
            return None
        return content

    def _gradient(self) -> Ref | None:
        """Store the gradient of the stage's input; the first stage has none."""
        stage = self.device.stage_weights().stage
        if stage == 0:
            return None
        return self.world.store(self.process, "gradient", self._boundary_bytes(stage, "gradient"))

    def _boundary_bytes(self, stage: int, kind: str) -> int:
        """Return the bytes of a stage's `activation`, or of the `gradient` of its input, as they cross the network."""
        size_bytes = self.world.hardware.boundary_bytes(stage, kind)
        if not self.kept:
            return size_bytes
        boundary = stage if kind == "activation" else stage - 1
        return round(size_bytes * byte_share(self.kept[boundary]))
