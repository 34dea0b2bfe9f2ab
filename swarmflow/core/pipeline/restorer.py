"""Brings evicted boundary tensors back when a repair needs them: from a neighbour, or by computing them again."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.hop import Hop, HopQuery, HopState, Wanted
from swarmflow.core.pipeline.in_flight import InFlight
from swarmflow.core.pipeline.journal import Journal
from swarmflow.core.protocol.actions import Action, Count, Release, RunForward, RunReplay, Send
from swarmflow.core.protocol.events import Replayed
from swarmflow.core.protocol.messages import Backward, Recall, Recalled
from swarmflow.core.protocol.types import Epoch, Microbatch, ProcessId, Ref


@dataclass(slots=True)
class Restorer:
    """Restores the tensors of evicted hops with weight 0: nothing is accumulated or counted twice.

    A hop's input comes from the stage before, which computes it again if it has evicted it too, in the end from the
    trainer; the gradient of its output comes from the stage after, in the end from the loss. So a repair replays only
    the segment between the nearest kept tensors on both sides.
    """

    stage: int
    last: bool  # whether this is the last stage
    capacity: int  # hops whose output is restored at a time
    dispatcher: Dispatcher
    journal: Journal
    hops: dict[Microbatch, Hop]  # of the peer
    before: dict[ProcessId, None] = field(default_factory=dict, init=False)  # peers of the stage before, or trainers
    _open: dict[Microbatch, Hop] = field(default_factory=dict, init=False)  # hops with `wanted`

    def finish(self, epoch: Epoch) -> None:
        """Restore nothing of a committed step any more."""
        for microbatch in [microbatch for microbatch in self._open if microbatch.epoch <= epoch]:
            del self._open[microbatch]

    def clear(self) -> None:
        """Restore nothing any more."""
        self._open.clear()

    def drop(self, hop: Hop) -> list[Action]:
        """Forget a hop that was dropped; processes that wait for its tensors have to ask others."""
        wanted, hop.wanted = hop.wanted, None
        self._open.pop(hop.microbatch, None)
        actions = self.journal.drop(hop)
        for gradient, askers in ((False, wanted.outputs), (True, wanted.gradients)) if wanted is not None else ():
            actions += [Send(asker, Recalled(hop.microbatch, self.stage, gradient)) for asker in askers]
        return actions

    # --- which hop needs what -----------------------------------------------------------------------------------------

    def resend(self) -> list[Action]:
        """Restore the outputs that have to go to another successor, of no more hops at a time than fit in memory.

        A hop that waits for its input keeps others waiting too, but not one whose input is here: the stage before may
        be full of hops whose gradients come only after that.
        """
        if not self.dispatcher.flights.starved:
            return []
        begun = {key: hop for key, hop in self._open.items() if hop.wanted is not None and hop.wanted.resend}
        waiting = sum(hop.input is None for hop in begun.values())
        flights = self.dispatcher.flights
        busy = len(begun) - waiting + sum(e.restored and not e.returned for e in flights.entries.values())
        actions: list[Action] = []
        for microbatch in list(flights.starved):
            hop = self.hops[microbatch]
            if busy >= self.capacity:
                break
            if hop.orphan or microbatch in begun or (hop.input is None and busy + waiting >= self.capacity):
                continue
            waiting += hop.input is None
            busy += hop.input is not None
            self._want(hop).resend = True
            actions += self.advance(hop)
        return actions

    def give_back(self, hop: Hop) -> list[Action]:
        """Give a predecessor the gradient of a hop's input."""
        wanted = self._want(hop)
        wanted.give_back = True
        wanted.asked.pop(False, None)  # the new predecessor is the one to be asked for the input
        return self.advance(hop)

    def undo(self, hop: Hop) -> list[Action]:
        """Subtract the gradient of an orphan from the sum."""
        self._want(hop).undo = True
        return self.advance(hop)

    def on_recall(self, sender: ProcessId, message: Recall) -> list[Action]:
        """Give a neighbour a tensor of this hop again: the gradient of its input, or its output."""
        hop = self.hops.get(message.microbatch)
        gives = message.stage == self.stage and (self.stage > 0 if message.gradient else not self.last)
        if hop is None or not gives:
            return [Send(sender, Recalled(message.microbatch, message.stage, message.gradient))]
        wanted = self._want(hop)
        (wanted.gradients if message.gradient else wanted.outputs)[sender] = None
        return self.advance(hop)

    # --- what arrives -------------------------------------------------------------------------------------------------

    def offered(self, hop: Hop, bodies: tuple[Ref, ...]) -> list[Action]:
        """Take the input of a hop that is here already, where it is missing: a predecessor has sent it again."""
        if hop.state is not HopState.DONE or self.stage == 0 or hop.input is not None or hop.gradient is not None:
            return [Release(bodies)]
        hop.input = bodies[0]
        self.journal.weigh(hop)
        return [Release(bodies[1:]), *self.resend()]

    def on_recalled(self, sender: ProcessId, message: Recalled, bodies: tuple[Ref, ...]) -> list[Action]:
        """Take a neighbour's answer: the tensor, or none where it does not have that hop."""
        hop, gradient = self.hops.get(message.microbatch), message.gradient
        near = (sender in self.dispatcher.next_stage.availability.alive) if gradient else (sender in self.before)
        right = message.stage == self.stage + (1 if gradient else -1)
        drop: list[Action] = [Release(bodies)] if bodies else []
        if hop is None or not (near and right and self._missing(hop, gradient)):
            return drop
        if not bodies:
            return self._ask(hop, gradient, whole_stage=True, but=sender)
        if len(bodies) != (1 if gradient else 2):
            return drop
        if gradient:
            return self.returned(hop, bodies[0])
        hop.input = bodies[0]
        self.journal.weigh(hop)
        return [Release(bodies[1:]), *self.advance(hop), *self.resend()]

    def returned(self, hop: Hop, gradient: Ref) -> list[Action]:
        """Take the gradient of the output of a hop that is done, where it is missing."""
        if not self._missing(hop, True):
            return [Release((gradient,)), *self.journal.evict()]
        hop.gradient_in = gradient
        self.journal.weigh(hop)
        return self.advance(hop)

    def settled(self, hop: Hop) -> list[Action]:
        """Ask for the gradient of a hop's output anew: a new successor has it, whichever peer was asked before."""
        if hop.wanted is not None:
            hop.wanted.asked.pop(True, None)
        return self.advance(hop)

    def recomputed(self, hop: Hop, output: Ref, now: float) -> list[Action]:
        """Continue with the output of a hop that is done, computed again."""
        if hop.wanted is None or not hop.wanted.forward:
            return [Release((output,))]
        hop.wanted.forward = False
        return [*self.dispatcher.refill(hop.microbatch, output, now), *self.advance(hop)]

    def replayed(self, hop: Hop, event: Replayed) -> list[Action]:
        """Continue with the gradient of the input of a hop that is done, computed again."""
        spare: list[Action] = [] if event.gradient is None else [Release((event.gradient,))]
        if hop.wanted is None or not hop.wanted.replay:
            return spare
        hop.wanted.replay = False
        if hop.gradient is None:
            hop.gradient, spare = event.gradient, []
            self.journal.weigh(hop)
        return [*spare, *self.advance(hop)]

    def gone(self, process: ProcessId) -> list[Action]:
        """Forget the requests of a dead process, and ask others for what it was asked for."""
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
    def busy(self) -> bool:
        """Whether a tensor is being restored."""
        return bool(self._open)

    def tick(self, now: float) -> list[Action]:
        """Ask the whole stage where a neighbour has not answered for long. Called after every event."""
        if not self._open:
            return []
        actions: list[Action] = []
        for hop in self._open.values():
            for gradient, query in list(hop.wanted.asked.items() if hop.wanted is not None else ()):
                if query.due_s is None:
                    query.due_s = now + self.dispatcher.late_min_s * 2.0**query.tries
                elif query.due_s <= now:
                    actions += self._ask(hop, gradient, whole_stage=True, again=True)
                    query.due_s = now + self.dispatcher.late_min_s * 2.0**query.tries
        return actions

    def next_deadline(self) -> float | None:
        """Return when tick is due."""
        if not self._open:
            return None
        queries = [q for hop in self._open.values() if hop.wanted is not None for q in hop.wanted.asked.values()]
        return min((query.due_s for query in queries if query.due_s is not None), default=None)

    # --- one hop ------------------------------------------------------------------------------------------------------

    def advance(self, hop: Hop) -> list[Action]:
        """Give what is here, compute what can be, ask for what is missing. Called after every change."""
        wanted = hop.wanted
        if wanted is None:
            return []
        actions = self._give(hop, wanted)
        if not wanted.anything:
            hop.wanted = None
            del self._open[hop.microbatch]
            return actions + self.journal.evict()
        if hop.state is not HopState.DONE and not wanted.undo:
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
            self._open[hop.microbatch] = hop
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
        if hop.gradient is not None or (self.stage == 0 and hop.state is HopState.DONE):
            bodies = () if hop.gradient is None else (hop.gradient,)
            message = Recalled(hop.microbatch, self.stage, gradient=True)
            actions += [Send(asker, message, bodies) for asker in wanted.gradients]
            wanted.gradients.clear()
            if wanted.give_back:
                wanted.give_back = False
                actions.append(Send(hop.upstream, Backward(hop.microbatch, self.stage - 1, hop.attempt), bodies))
            if hop.former is not None:
                (former, attempt), hop.former = hop.former, None
                actions.append(Send(former, Backward(hop.microbatch, self.stage - 1, attempt), bodies))
        return actions

    def _compute(self, hop: Hop, wanted: Wanted) -> list[Action]:
        if hop.input is None:
            return []
        actions: list[Action] = []
        if wanted.output and not self.dispatcher.flights.has_input(hop.microbatch) and not wanted.forward:
            wanted.forward = True
            again = RunForward(hop.microbatch, hop.input, hop.targets, keep=False, again=True)
            actions += [Count("recomputations"), again]
        ends = self.last or hop.gradient_in is not None
        if ends and wanted.whole_hop(hop) and not wanted.replay:
            wanted.replay = True
            weight = -1 if wanted.undo else 0
            actions.append(Count("orphans_subtracted") if wanted.undo else Count("recomputations"))
            actions.append(RunReplay(hop.microbatch, hop.input, hop.targets, hop.gradient_in, weight))
        return actions

    def _ask(
        self, hop: Hop, gradient: bool, whole_stage: bool = False, again: bool = False, but: ProcessId | None = None
    ) -> list[Action]:
        """Ask the peer that should have a tensor; its whole stage if it is gone, silent, or does not have it."""
        wanted = hop.wanted
        assert wanted is not None, "only what is wanted is asked for"
        known = self.dispatcher.flights.holder(hop.microbatch) if gradient else hop.upstream
        stage = self.dispatcher.next_stage.availability.alive if gradient else tuple(self.before)
        whole_stage = whole_stage or known not in stage
        query = wanted.asked.setdefault(gradient, HopQuery(whole_stage=False))
        if query.whole_stage and not again:
            return []  # its answers are on their way, or it will be asked again
        query.whole_stage, query.tries = whole_stage, query.tries + again
        message = Recall(hop.microbatch, self.stage + (1 if gradient else -1), gradient)
        return [Send(p, message) for p in stage if p != but and (whole_stage or p == known)]

    def _missing(self, hop: Hop, gradient: bool) -> bool:
        """Return whether the hop's input (or the gradient of its output) is needed, and not here."""
        wanted = hop.wanted
        if wanted is None or (hop.state is not HopState.DONE and not wanted.undo):
            return False
        through = wanted.whole_hop(hop)
        if gradient:
            return through and not self.last and hop.gradient_in is None
        output_here = self.dispatcher.flights.has_input(hop.microbatch)
        return hop.input is None and (through or (wanted.output and not output_here))

    def _expected(self, hop: Hop) -> bool:
        """Return whether a successor will send the gradient in any case, since it repeats the hop after this."""
        entry = self._entry(hop)
        return entry is not None and not entry.returned and not entry.settled and not hop.orphan

    def _entry(self, hop: Hop) -> InFlight | None:
        return self.dispatcher.flights.entries.get(hop.microbatch)
