"""The bytes that a peer keeps for repairs: evicted when they are too many, brought back when a repair needs them."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Count, Release, RunForward, RunReplay, Send
from swarmflow.core.dispatcher import Dispatcher
from swarmflow.core.events import Replayed
from swarmflow.core.hop import Hop, HopQuery, Wanted
from swarmflow.core.in_flight import InFlight
from swarmflow.core.messages import Backward, Recall, Recalled
from swarmflow.core.types import ProcessId, Ref


@dataclass(slots=True)
class Journal:
    """Boundary tensors of finished hops, up to bytes_max.

    What is needed of an evicted hop is computed again with weight 0: nothing is accumulated or counted twice. The hop's
    input comes from the stage before, which computes it again if it has evicted it too, in the end from the trainer;
    the gradient of its output comes from the stage after, in the end from the loss. So a repair replays only the
    segment between the nearest kept tensors on both sides.
    """

    stage: int
    stages: int
    capacity: int  # hops whose output is brought back at a time
    dispatcher: Dispatcher
    bytes_max: int
    hops: dict[int, Hop]  # of the peer, by index
    before: dict[ProcessId, None] = field(default_factory=dict)  # peers of the stage before, or the trainers
    _open: dict[int, Hop] = field(default_factory=dict)
    _weights: dict[int, int] = field(default_factory=dict)
    _kept_bytes: int = 0

    def open(self, before: tuple[ProcessId, ...]) -> None:
        """Begin an epoch with nothing kept."""
        self.before = dict.fromkeys(before)
        self._open.clear()

    def clear(self) -> list[Action]:
        """Drop everything, once the step is committed or void."""
        refs: list[Ref] = []
        for hop in self.hops.values():
            refs += self._refs(hop)
        self.hops.clear()
        self._open.clear()
        self._weights.clear()
        self._kept_bytes = 0
        actions = self.dispatcher.clear()
        return [*actions, Release(tuple(refs))] if refs else actions

    def drop(self, hop: Hop) -> list[Action]:
        """Forget a hop that was dropped; those that wait for its tensors have to ask others."""
        wanted, hop.wanted = hop.wanted, None
        self._open.pop(hop.microbatch.index, None)
        self._kept_bytes -= self._weights.pop(hop.microbatch.index, 0)
        refs = self._refs(hop)
        actions: list[Action] = [Release(tuple(refs))] if refs else []
        actions += self.dispatcher.forget(hop.microbatch.index)
        for gradient, askers in ((False, wanted.outputs), (True, wanted.gradients)) if wanted is not None else ():
            actions += [Send(asker, Recalled(hop.microbatch, self.stage, gradient)) for asker in askers]
        return actions

    @property
    def size_bytes(self) -> int:
        """Bytes kept for repairs until the step is committed."""
        return self._kept_bytes + self.dispatcher.size_bytes

    def weigh(self, hop: Hop) -> None:
        """What is kept of a hop has changed. Summing over all hops at each event would be as slow as a step is long."""
        index, weight = hop.microbatch.index, sum(ref.size_bytes for ref in hop.kept)
        self._kept_bytes += weight - self._weights.get(index, 0)
        self._weights[index] = weight

    def evict(self) -> list[Action]:
        """Keep within the bound, at the cost of what came first; what is not done, or being brought back, stays."""
        actions: list[Action] = []
        excess = self.size_bytes - self.bytes_max
        for hop in self.hops.values():
            if excess <= 0:
                break
            if hop.done is None or hop.wanted is not None:
                continue
            sent = self.dispatcher.evict(hop.microbatch.index)
            refs = (*hop.kept, *(() if sent is None else (sent,)))
            hop.input = hop.gradient_in = hop.gradient = None
            self.weigh(hop)
            excess -= sum(ref.size_bytes for ref in refs)
            actions += [Count("evictions"), Release(refs)] if refs else []
        return actions

    # --- who needs what -----------------------------------------------------------------------------------------------

    def resend(self) -> list[Action]:
        """Bring back what has to be sent to another successor, of no more hops at a time than fit in memory.

        A hop that waits for its input keeps others waiting too, but not one whose input is here: the stage before may
        be full of hops whose gradients come only after that.
        """
        if not self.dispatcher.starved:
            return []
        begun = {index: hop for index, hop in self._open.items() if hop.wanted is not None and hop.wanted.resend}
        waiting = sum(hop.input is None for hop in begun.values())
        busy = len(begun) - waiting + sum(e.restored and not e.returned for e in self.dispatcher.entries.values())
        actions: list[Action] = []
        for index in list(self.dispatcher.starved):
            hop = self.hops[index]
            if busy >= self.capacity:
                break
            if hop.orphan or index in begun or (hop.input is None and busy + waiting >= self.capacity):
                continue
            waiting += hop.input is None
            busy += hop.input is not None
            self._want(hop).resend = True
            actions += self.advance(hop)
        return actions

    def give_back(self, hop: Hop) -> list[Action]:
        """A predecessor that replaces another one is owed the gradient of a hop that is done."""
        wanted = self._want(hop)
        wanted.give_back = True
        wanted.asked.pop(False, None)  # it is the one to be asked for the input
        return self.advance(hop)

    def undo(self, hop: Hop) -> list[Action]:
        """What an orphan has added is to be taken away."""
        self._want(hop).undo = True
        return self.advance(hop)

    def recall(self, sender: ProcessId, message: Recall) -> list[Action]:
        """A neighbour has evicted what this hop once gave it, or what this hop's successor once had of it."""
        hop = self.hops.get(message.microbatch.index)
        gives = message.stage == self.stage and (self.stage > 0 if message.gradient else self.stage < self.stages - 1)
        if hop is None or hop.microbatch != message.microbatch or not gives:
            return [Send(sender, Recalled(message.microbatch, message.stage, message.gradient))]
        wanted = self._want(hop)
        (wanted.gradients if message.gradient else wanted.outputs)[sender] = None
        return self.advance(hop)

    # --- what comes ---------------------------------------------------------------------------------------------------

    def offered(self, hop: Hop, bodies: tuple[Ref, ...]) -> list[Action]:
        """A predecessor has sent the input of a hop that is here already: it may be just what is missing."""
        if hop.done is None or self.stage == 0 or hop.input is not None or hop.gradient is not None:
            return [Release(bodies)]
        hop.input = bodies[0]
        self.weigh(hop)
        return [Release(bodies[1:]), *self.resend()]

    def recalled(self, sender: ProcessId, message: Recalled, bodies: tuple[Ref, ...]) -> list[Action]:
        """A neighbour answers: with the bytes, or with none where it does not have that hop."""
        hop, gradient = self.hops.get(message.microbatch.index), message.gradient
        near = (sender in self.dispatcher.alive) if gradient else (sender in self.before)
        right = message.stage == self.stage + (1 if gradient else -1)
        drop: list[Action] = [Release(bodies)] if bodies else []
        if hop is None or hop.microbatch != message.microbatch or not (near and right and self._missing(hop, gradient)):
            return drop
        if not bodies:
            return self._ask(hop, gradient, whole_stage=True, but=sender)
        if len(bodies) != (1 if gradient else 2):
            return drop
        return self.returned(hop, bodies[0]) if gradient else self._entered(hop, bodies)

    def returned(self, hop: Hop, gradient: Ref) -> list[Action]:
        """The gradient of the output of a hop that is done came once more."""
        if not self._missing(hop, True):
            return [Release((gradient,)), *self.evict()]
        hop.gradient_in = gradient
        self.weigh(hop)
        return self.advance(hop)

    def settled(self, hop: Hop) -> list[Action]:
        """The gradient of a hop's output is with a new successor: who wants it asks there, whoever was asked before."""
        if hop.wanted is not None:
            hop.wanted.asked.pop(True, None)
        return self.advance(hop)

    def recomputed(self, hop: Hop, output: Ref, now: float) -> list[Action]:
        """The output of a hop that is done is there again."""
        if hop.wanted is None or not hop.wanted.forward:
            return [Release((output,))]
        hop.wanted.forward = False
        return [*self.dispatcher.refill(hop.microbatch.index, output, now), *self.advance(hop)]

    def replayed(self, hop: Hop, event: Replayed) -> list[Action]:
        """The gradient of the input of a hop that is done is there again."""
        spare: list[Action] = [] if event.gradient is None else [Release((event.gradient,))]
        if hop.wanted is None or not hop.wanted.replay:
            return spare
        hop.wanted.replay = False
        if hop.gradient is None:
            hop.gradient, spare = event.gradient, []
            self.weigh(hop)
        return [*spare, *self.advance(hop)]

    def gone(self, process: ProcessId) -> list[Action]:
        """A process died: its questions are void, and what it was asked for has to come from others."""
        self.before.pop(process, None)
        actions: list[Action] = []
        for hop in list(self._open.values()):
            wanted = hop.wanted
            assert wanted is not None, "closed where it is set to None"
            wanted.outputs.pop(process, None)
            wanted.gradients.pop(process, None)
            if process == hop.upstream:
                wanted.asked.pop(False, None)
            wanted.asked.pop(True, None)
            actions += self.advance(hop)
        return actions + self.resend()

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        """Before it a tick leads to nothing, here or in the dispatcher."""
        return 0.0 if self._open else self.dispatcher.due_s

    def tick(self, now: float) -> list[Action]:
        """Ask the whole stage where a neighbour has not answered for long. A machine ticks after every event."""
        if not self._open:
            return []
        actions: list[Action] = []
        for hop in self._open.values():
            for gradient, question in list(hop.wanted.asked.items() if hop.wanted is not None else ()):
                if question.due_s is None:
                    question.due_s = now + self.dispatcher.late_min_s * 2.0**question.tries
                elif question.due_s <= now:
                    actions += self._ask(hop, gradient, whole_stage=True, again=True)
                    question.due_s = now + self.dispatcher.late_min_s * 2.0**question.tries
        return actions

    def next_deadline(self) -> float | None:
        """When tick is due."""
        if not self._open:
            return None
        questions = [q for hop in self._open.values() if hop.wanted is not None for q in hop.wanted.asked.values()]
        return min((question.due_s for question in questions if question.due_s is not None), default=None)

    # --- one hop ------------------------------------------------------------------------------------------------------

    def advance(self, hop: Hop) -> list[Action]:
        """Give what is here, compute what can be, ask for what is missing. Called after whatever has changed."""
        wanted = hop.wanted
        if wanted is None:
            return []
        actions = self._give(hop, wanted)
        if not wanted.anything:
            hop.wanted = None
            del self._open[hop.microbatch.index]
            return actions + self.evict()
        if hop.done is None and not wanted.undo:
            return actions  # it is being computed for the first time
        actions += self._compute(hop, wanted)
        for gradient in (False, True):
            if not self._missing(hop, gradient):
                wanted.asked.pop(gradient, None)
            elif gradient not in wanted.asked and not (gradient and self._expected(hop)):
                actions += self._ask(hop, gradient)
        return actions

    def _want(self, hop: Hop) -> Wanted:
        if hop.wanted is None:
            hop.wanted = Wanted()
            self._open[hop.microbatch.index] = hop
        return hop.wanted

    def _give(self, hop: Hop, wanted: Wanted) -> list[Action]:
        actions: list[Action] = []
        entry = self._entry(hop)
        if entry is not None and entry.data is not None:
            wanted.resend = False
            message = Recalled(hop.microbatch, self.stage, gradient=False)
            actions += [Send(asker, message, entry.bodies) for asker in wanted.outputs]
            wanted.outputs.clear()
        if wanted.give_back and hop.settled:
            wanted.give_back = False
            actions.append(Send(hop.upstream, Backward(hop.microbatch, self.stage - 1, hop.attempt)))
        if hop.gradient is not None or (self.stage == 0 and hop.done is not None):
            bodies = () if hop.gradient is None else (hop.gradient,)
            message = Recalled(hop.microbatch, self.stage, gradient=True)
            actions += [Send(asker, message, bodies) for asker in wanted.gradients]
            wanted.gradients.clear()
            if wanted.give_back:
                wanted.give_back = False
                actions.append(Send(hop.upstream, Backward(hop.microbatch, self.stage - 1, hop.attempt), bodies))
        return actions

    def _compute(self, hop: Hop, wanted: Wanted) -> list[Action]:
        if hop.input is None:
            return []
        actions: list[Action] = []
        if wanted.output and not self._has_output(hop) and not wanted.forward:
            wanted.forward = True
            actions += [Count("recomputations"), RunForward(hop.microbatch, hop.input, keep=False, again=True)]
        ends = self._last or hop.gradient_in is not None
        if ends and self._through(hop, wanted) and not wanted.replay:
            wanted.replay = True
            weight = -1 if wanted.undo else 0
            actions.append(Count("orphans_subtracted") if wanted.undo else Count("recomputations"))
            actions.append(RunReplay(hop.microbatch, hop.input, hop.targets, hop.gradient_in, weight))
        return actions

    def _ask(
        self, hop: Hop, gradient: bool, whole_stage: bool = False, again: bool = False, but: ProcessId | None = None
    ) -> list[Action]:
        """Ask who should have it; if that one is gone, does not have it, or is silent: its whole stage."""
        wanted = hop.wanted
        assert wanted is not None, "only what is wanted is asked for"
        known = self.dispatcher.holder(hop.microbatch.index) if gradient else hop.upstream
        stage = self.dispatcher.alive if gradient else tuple(self.before)
        whole_stage = whole_stage or known not in stage
        question = wanted.asked.setdefault(gradient, HopQuery(whole_stage=False))
        if question.whole_stage and not again:
            return []  # its answers are on their way, or it will be asked again
        question.whole_stage, question.tries = whole_stage, question.tries + again
        message = Recall(hop.microbatch, self.stage + (1 if gradient else -1), gradient)
        return [Send(p, message) for p in stage if p != but and (whole_stage or p == known)]

    def _through(self, hop: Hop, wanted: Wanted) -> bool:
        """Whether the hop has to go forward and backward again."""
        return wanted.undo or (wanted.gradient and hop.gradient is None)

    def _missing(self, hop: Hop, gradient: bool) -> bool:
        """Whether the hop's input (or the gradient of its output) is needed, and not here."""
        wanted = hop.wanted
        if wanted is None or (hop.done is None and not wanted.undo):
            return False
        through = self._through(hop, wanted)
        if gradient:
            return through and not self._last and hop.gradient_in is None
        return hop.input is None and (through or (wanted.output and not self._has_output(hop)))

    def _expected(self, hop: Hop) -> bool:
        """Whether a successor will send the gradient in any case: it is a repair's."""
        entry = self._entry(hop)
        return entry is not None and not entry.returned and not entry.settled and not hop.orphan

    def _entered(self, hop: Hop, bodies: tuple[Ref, ...]) -> list[Action]:
        hop.input = bodies[0]
        self.weigh(hop)
        return [Release(bodies[1:]), *self.advance(hop), *self.resend()]

    def _has_output(self, hop: Hop) -> bool:
        entry = self._entry(hop)
        return entry is not None and entry.data is not None

    def _entry(self, hop: Hop) -> InFlight | None:
        return self.dispatcher.entries.get(hop.microbatch.index)

    def _refs(self, hop: Hop) -> tuple[Ref, ...]:
        """What is to be released with a hop; its targets belong to the dispatcher once they are in it."""
        return hop.kept if self._entry(hop) is not None else (*hop.kept, hop.targets)

    @property
    def _last(self) -> bool:
        return self.stage == self.stages - 1
