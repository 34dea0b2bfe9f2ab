"""A trainer's own microbatches: formed by the data rule, dispatched to stage 0, tracked until complete."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.pipeline.admission import WITHOUT_GRAPH
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.protocol.actions import Action, FormMicrobatch, Release, Send
from swarmflow.core.protocol.events import MicrobatchFormed
from swarmflow.core.protocol.messages import (
    Accepted,
    Assign,
    Backward,
    Denied,
    OpenStep,
    Recall,
    Recalled,
    Routed,
    SlotReserved,
)
from swarmflow.core.protocol.shares import shares
from swarmflow.core.protocol.types import FIRST_ATTEMPT, NO_EPOCH, Attempt, Epoch, Member, Microbatch, ProcessId


@dataclass(slots=True)
class MicrobatchSource:
    """Feeds this trainer's microbatches into the pipeline.

    Microbatch i of a step belongs to trainer i mod (number of trainers) until that one dies. Its content depends on the
    data rule alone, not on who forms it.
    """

    me: ProcessId
    microbatches: int  # of a step
    dispatcher: Dispatcher
    epoch: Epoch = field(init=False, default=NO_EPOCH)
    window: int = field(init=False, default=1)  # microbatches in flight at a time: its share of stage 0's slots
    reassignment: int = field(init=False, default=0)  # the highest that was assigned
    done: int = field(init=False, default=0)  # microbatches formed in this life
    _attempts: dict[int, Attempt] = field(init=False, default_factory=dict)  # by index, of the own microbatches
    _todo: list[int] = field(init=False, default_factory=list)
    _in_flight: set[int] = field(init=False, default_factory=set)
    _room: int = field(init=False, default=1)  # slots of the first stage
    _trainers: int = field(init=False, default=1)

    @property
    def indices(self) -> tuple[int, ...]:
        """This trainer's microbatches of the epoch."""
        return tuple(sorted(self._attempts))

    def open(self, message: OpenStep) -> list[Action]:
        """Begin an epoch with this trainer's share of its microbatches."""
        trainers = [member.process for member in message.roster.trainers]
        first = message.roster.stages[0]
        self.dispatcher.trainers = tuple(trainers)
        actions = self.dispatcher.open(
            message.epoch, message.roster.ids_by_stage[0], message.roster.slots_per_sender[0]
        )
        self.epoch, self.reassignment = message.epoch, 0
        self._in_flight.clear()
        self._attempts = dict.fromkeys(shares(tuple(trainers), self.microbatches).get(self.me, ()), FIRST_ATTEMPT)
        self._todo = list(self._attempts)
        self._room = (1 + WITHOUT_GRAPH) * sum(member.capacity for member in first)
        self._trainers = len(trainers)
        return actions + self._feed()

    def assign(self, message: Assign) -> list[Action]:
        """Take over microbatches of a dead trainer; stage 0 is asked who holds them before they are sent."""
        fresh = [index for index in message.indices if index not in self._attempts]
        self.reassignment = max(self.reassignment, message.reassignment)
        self._attempts |= dict.fromkeys(fresh, Attempt(message.reassignment))
        self._todo += fresh
        return self._feed()

    def trainer_gone(self) -> list[Action]:
        """Widen the window after a trainer's death."""
        self._trainers = max(1, self._trainers - 1)
        return self._feed()

    def enter(self, member: Member, now: float) -> list[Action]:
        """Add a peer amid the step, if it serves stage 0."""
        if member.stage != 0:
            return []
        return self.dispatcher.enter(member.process, member.capacity // self._trainers, now)

    def formed(self, event: MicrobatchFormed, now: float) -> list[Action]:
        """Dispatch a microbatch that was formed."""
        self.done += 1
        if event.microbatch.epoch != self.epoch:
            return [Release((event.tokens, event.targets))]
        attempt = self._attempts[event.microbatch.index]
        return self.dispatcher.offer(
            event.microbatch, (event.tokens, event.targets), now, attempt, repair=attempt.reassignment > 0
        )

    def on_recall(self, sender: ProcessId, message: Recall) -> list[Action]:
        """Return the input that a peer of stage 0 has evicted."""
        entry = self.dispatcher.flights.entries.get(message.microbatch.index)
        here = entry is not None and entry.microbatch == message.microbatch and not message.gradient
        bodies = entry.bodies if entry is not None and here else ()
        return [Send(sender, Recalled(message.microbatch, message.stage, message.gradient), bodies)]

    def message(
        self, sender: ProcessId, message: Accepted | SlotReserved | Denied | Routed | Backward, now: float
    ) -> list[Action]:
        """Handle an answer of stage 0."""
        microbatch = message.microbatch
        if microbatch.epoch != self.epoch:
            return []
        match message:
            case Accepted():
                self.dispatcher.accepted(sender, message, now)
            case SlotReserved():
                return self.dispatcher.reserved(sender, message, now)
            case Denied():
                return self.dispatcher.denied(sender, microbatch, message.attempt, message.reason, now)
            case Routed():
                self.dispatcher.routed(sender, microbatch, message.attempt, message.successor, now)
            case Backward():
                if self.dispatcher.returned(sender, microbatch, message.attempt, now):
                    self._in_flight.discard(microbatch.index)
                    return self._feed()
        return []

    def _feed(self) -> list[Action]:
        self.window = max(1, -(-self._room // self._trainers))
        actions: list[Action] = []
        while self._todo and len(self._in_flight) < self.window:
            index = self._todo.pop(0)
            self._in_flight.add(index)
            actions.append(FormMicrobatch(Microbatch(self.epoch, index)))
        return actions
