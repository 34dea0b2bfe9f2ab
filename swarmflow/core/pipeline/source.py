"""A trainer's own microbatches: formed by the data rule, dispatched to stage 0, tracked until complete."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from swarmflow.core.pipeline import lateness, offers, turnover
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
from swarmflow.core.protocol.types import (
    FIRST_ATTEMPT,
    NO_EPOCH,
    WITHOUT_GRAPH,
    Attempt,
    Epoch,
    Member,
    Microbatch,
    ProcessId,
)


@dataclass(slots=True)
class MicrobatchSource:
    """Feeds this trainer's microbatches into the pipeline.

    Microbatch i of a step belongs to trainer i mod (number of trainers) until that one dies. Its content depends on the
    data rule alone, not on who forms it.
    """

    me: ProcessId
    microbatches: int  # of a step
    dispatcher: Dispatcher
    without_graph: int = WITHOUT_GRAPH  # microbatches that the first stage's peers admit for each one with a graph
    epoch: Epoch = field(init=False, default=NO_EPOCH)
    ahead: Epoch | None = field(init=False, default=None)  # the next step, begun while this one is reduced
    window: int = field(init=False, default=1)  # microbatches in flight at a time: its share of stage 0's slots
    reassignment: int = field(init=False, default=0)  # the highest that was assigned
    done: int = field(init=False, default=0)  # microbatches formed in this life
    _attempts: dict[Microbatch, Attempt] = field(init=False, default_factory=dict)  # of the own microbatches
    _todo: deque[Microbatch] = field(init=False, default_factory=deque)
    _in_flight: set[Microbatch] = field(init=False, default_factory=set)
    _forming: set[Microbatch] = field(init=False, default_factory=set)  # of these, what this process has yet to form
    _room: int = field(init=False, default=1)  # slots of the first stage

    @property
    def forming(self) -> int:
        """How many microbatches are being formed."""
        return len(self._forming)

    def indices(self, epoch: Epoch | None) -> tuple[int, ...]:
        """Return this trainer's microbatches of a step."""
        return tuple(sorted(microbatch.index for microbatch in self._attempts if microbatch.epoch == epoch))

    def open(self, message: OpenStep, now: float) -> list[Action]:
        """Begin an epoch with this trainer's share of its microbatches, or go on with what it has begun ahead."""
        trainers, first = message.roster.ids_by_stage[-1], message.roster.stages[0]
        self.dispatcher.trainers, self.dispatcher.senders = trainers, len(trainers)
        self._room = (1 + self.without_graph) * sum(member.capacity for member in first)
        peers = message.roster.ids_by_stage[0], message.roster.slots_per_sender[0]
        if message.epoch == self.ahead:
            self.epoch, self.ahead = self.ahead, None
            return [
                *self.finish(message.epoch.former),
                *turnover.dispatch_on(self.dispatcher, message.epoch, *peers, (), now),
            ]
        actions = self.dispatcher.open(message.epoch, *peers)
        self.epoch, self.ahead, self.reassignment = message.epoch, None, 0
        self._in_flight.clear()
        self._forming.clear()
        # A step that others have begun ahead is all theirs.
        share = () if message.ahead else shares(trainers, self.microbatches).get(self.me, ())
        self._attempts = dict.fromkeys([Microbatch(message.epoch, index) for index in share], FIRST_ATTEMPT)
        self._todo = deque(self._attempts)
        return actions + self._feed()

    def finish(self, epoch: Epoch) -> list[Action]:
        """Drop what is kept of a committed step, and of earlier ones."""
        for microbatch in [microbatch for microbatch in self._attempts if microbatch.epoch <= epoch]:
            del self._attempts[microbatch]
            self._in_flight.discard(microbatch)
            self._forming.discard(microbatch)
        self._todo = deque(microbatch for microbatch in self._todo if microbatch.epoch > epoch)
        return turnover.finish_flights(self.dispatcher, epoch) + self._feed()

    def assign(self, message: Assign) -> list[Action]:
        """Take over microbatches of a dead trainer, or a share of the next step.

        Stage 0 is asked who holds those of a dead trainer before they are sent.
        """
        if message.epoch not in (self.epoch, self.epoch.following):
            return []
        if message.epoch != self.epoch:
            self.ahead = message.epoch
        every = (Microbatch(message.epoch, index) for index in message.indices)
        fresh = [microbatch for microbatch in every if microbatch not in self._attempts]
        self.reassignment = max(self.reassignment, message.reassignment)
        self._attempts |= dict.fromkeys(fresh, Attempt(message.reassignment))
        self._todo += fresh
        return self._feed()

    def trainer_gone(self) -> list[Action]:
        """Widen the window after a trainer's death."""
        self.dispatcher.senders = max(1, self.dispatcher.senders - 1)
        return self._feed()

    def enter(self, member: Member, now: float) -> list[Action]:
        """Add a peer amid the step, if it serves stage 0."""
        if member.stage != 0:
            return []
        return self.dispatcher.enter(member.process, member.capacity // self.dispatcher.senders, now)

    def formed(self, event: MicrobatchFormed, now: float) -> list[Action]:
        """Dispatch a microbatch that was formed."""
        self.done += 1
        self._forming.discard(event.microbatch)
        attempt = self._attempts.get(event.microbatch)
        if attempt is None:
            return [Release((event.tokens, event.targets))]
        return self.dispatcher.offer(
            event.microbatch, (event.tokens, event.targets), now, attempt, repair=attempt.reassignment > 0
        )

    def on_recall(self, sender: ProcessId, message: Recall) -> list[Action]:
        """Return the input that a peer of stage 0 has evicted."""
        entry = self.dispatcher.flights.entries.get(message.microbatch)
        bodies = entry.bodies if entry is not None else ()
        return [Send(sender, Recalled(message.microbatch, message.stage, message.gradient), bodies)]

    def message(
        self, sender: ProcessId, message: Accepted | SlotReserved | Denied | Routed | Backward, now: float
    ) -> list[Action]:
        """Handle an answer of stage 0."""
        microbatch = message.microbatch
        if microbatch not in self._attempts:
            return []
        match message:
            case Accepted():
                return lateness.accepted(self.dispatcher, sender, message, now)
            case SlotReserved():
                return offers.reserved(self.dispatcher, sender, message, now)
            case Denied():
                return offers.denied(self.dispatcher, sender, message, now)
            case Routed():
                self.dispatcher.routed(sender, microbatch, message.attempt, message.successor, now)
            case Backward():
                if self.dispatcher.returned(sender, microbatch, message.attempt, now):
                    self._in_flight.discard(microbatch)
                    return self._feed()
        return []

    def _feed(self) -> list[Action]:
        self.window = max(1, -(-self._room // self.dispatcher.senders))
        actions: list[Action] = []
        while self._todo and len(self._in_flight) < self.window:
            microbatch = self._todo.popleft()
            self._in_flight.add(microbatch)
            self._forming.add(microbatch)
            actions.append(FormMicrobatch(microbatch))
        return actions
