"""The gradient of a repaired hop comes from the stage after while its tensors come from the stage before.

Who computes a dead peer's hop again needs the input, and the gradient of the output where the hop had been passed on.
One after the other they take twice as long, and these are what a repair takes. So the sender announces such a
microbatch: a Forward without its tensors, which overtakes them. Its receiver asks for the gradient at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.pipeline.admission import Admission
from swarmflow.core.pipeline.hop import Hop
from swarmflow.core.pipeline.next_stage import NextStage
from swarmflow.core.protocol.actions import Action, Release, Send
from swarmflow.core.protocol.handovers import handovers_of
from swarmflow.core.protocol.messages import Accepted, Adopt, Backward, Forward, Recall, Recalled, Routed
from swarmflow.core.protocol.types import Attempt, Epoch, Microbatch, ProcessId, Ref


@dataclass(slots=True)
class EarlyGradient:
    """The gradient of a hop's output that was asked for before its tensors are here."""

    upstream: ProcessId  # who announced the hop
    holder: ProcessId  # of the hop after it, who was asked
    attempt: Attempt  # of the hop after it
    held: bool = field(default=False, init=False)  # the holder has it
    successor: ProcessId | None = field(default=None, init=False)  # to whom the holder has passed it on
    recalled: bool = field(default=False, init=False)  # the holder asks for the output, to compute its gradient again
    gradient: Ref | None = field(default=None, init=False)


@dataclass(slots=True)
class EarlyGradients:
    """The early gradients of one peer: no more of them than microbatches that it may hold."""

    stage: int
    last: bool  # whether this is the last stage, which no gradient comes to
    admission: Admission
    next_stage: NextStage
    _asked: dict[Microbatch, EarlyGradient] = field(default_factory=dict, init=False)

    def announced(self, sender: ProcessId, message: Forward) -> list[Action]:
        """Ask the holder of the next hop for its gradient, unless the announced microbatch will be denied."""
        microbatch, holder, admission = message.microbatch, message.held_by, self.admission
        if self.last or holder is None or holder not in self.next_stage.availability.alive:
            return []
        admitted = microbatch in admission.reserved or admission.free(message.insist, microbatch.epoch) > 0
        if not admitted or len(self._asked) >= admission.capacity * (1 + admission.extra):
            return []
        released = self.drop(microbatch)
        early = self._asked[microbatch] = EarlyGradient(sender, holder, message.attempt.passed_on())
        shown = handovers_of(sender, message)
        return [*released, Send(holder, Adopt(microbatch, self.stage + 1, early.attempt, False, shown))]

    def answered(self, sender: ProcessId, message: Accepted | Routed) -> None:
        """Record that the holder has the next hop, or to whom it has passed it on."""
        early = self._found(sender, message.microbatch, message.attempt)
        if early is not None:
            early.held = True
            early.successor = message.successor if isinstance(message, Routed) else early.successor

    def arrived(self, sender: ProcessId, message: Backward, bodies: tuple[Ref, ...]) -> bool:
        """Keep a gradient that is here before the output; return whether it is one that was asked for."""
        early = self._found(sender, message.microbatch, message.attempt)
        if early is None or early.gradient is not None or len(bodies) != 1:
            return False
        early.held, early.gradient = True, bodies[0]
        return True

    def recall(self, sender: ProcessId, message: Recall) -> bool:
        """Keep a question for the output of an announced hop; return whether it is one, from the holder that was asked.

        It would else be told that there is no such hop here, would ask the rest of the stage in vain, and ask again
        only after `late_min_s` (experiments/held_out, scenario 15: a step took 15 s longer).
        """
        early = self._asked.get(message.microbatch)
        if early is None or message.gradient or early.holder != sender:
            return False
        early.recalled = True
        return True

    def begun(self, microbatch: Microbatch) -> ProcessId | None:
        """Return who asked for the output of a hop whose tensors are here now: from now on the hop answers."""
        early = self._asked.get(microbatch)
        if early is None or not early.recalled:
            return None
        early.recalled = False
        return early.holder

    def take(self, hop: Hop) -> tuple[EarlyGradient | None, list[Action]]:
        """Return what a hop that is computed gets from the holder that was asked; None: it has to ask anew."""
        early = self._asked.get(hop.microbatch)
        if early is None or not early.held or early.attempt != hop.attempt.passed_on():
            return None, self.drop(hop.microbatch)
        del self._asked[hop.microbatch]
        return early, []

    def drop(self, microbatch: Microbatch) -> list[Action]:
        """Forget a microbatch, with the gradient that is here. Who asked for its output has to ask others."""
        early = self._asked.pop(microbatch, None)
        if early is None:
            return []
        actions: list[Action] = [Release((early.gradient,))] if early.gradient is not None else []
        none_here = Recalled(microbatch, self.stage, gradient=False)
        return [*actions, Send(early.holder, none_here)] if early.recalled else actions

    def gone(self, process: ProcessId) -> list[Action]:
        """Forget what a dead process has announced, or holds."""
        lost = {m: early for m, early in self._asked.items() if process in (early.upstream, early.holder)}
        for early in lost.values():
            early.recalled &= early.holder != process
        return [action for microbatch in lost for action in self.drop(microbatch)]

    def finish(self, epoch: Epoch | None = None) -> list[Action]:
        """Forget the microbatches of a committed step and of earlier ones; None: all."""
        over = {m: early for m, early in self._asked.items() if epoch is None or m.epoch <= epoch}
        for early in over.values():
            early.recalled = False  # nobody needs it any more
        return [action for microbatch in over for action in self.drop(microbatch)]

    def _found(self, sender: ProcessId, microbatch: Microbatch, attempt: Attempt) -> EarlyGradient | None:
        early = self._asked.get(microbatch)
        return early if early is not None and (early.holder, early.attempt) == (sender, attempt) else None
