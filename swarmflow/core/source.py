"""The trainer's own microbatches: formed by the data rule, sent to stage 0, awaited until complete."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.actions import Action, FormMicrobatch, Release, Send
from swarmflow.core.events import MicrobatchFormed
from swarmflow.core.messages import Accepted, Assign, Backward, Denied, OpenStep, Recall, Recalled, Routed, SlotReserved
from swarmflow.core.outbox import Dispatcher
from swarmflow.core.space import WITHOUT_GRAPH
from swarmflow.core.types import BEFORE_ALL, Epoch, Member, Microbatch, ProcessId


def shares(trainers: tuple[ProcessId, ...], microbatches: int) -> dict[ProcessId, range]:
    """Which microbatches of a step each trainer of its roster forms."""
    return {trainer: range(rank, microbatches, len(trainers)) for rank, trainer in enumerate(trainers)}


@dataclass(slots=True)
class MicrobatchSource:
    """Feeds the microbatches that fall to this trainer into the pipeline, its share of what the first stage may hold.

    Microbatch i of a step belongs to trainer i mod (number of trainers), until that one dies; what it holds is a
    matter of the data rule and not of who forms it. attempt: the highest that was assigned.
    done: microbatches formed in all of this life.
    """

    me: ProcessId
    microbatches: int
    dispatcher: Dispatcher
    epoch: Epoch = BEFORE_ALL
    window: int = 1
    attempt: int = 0
    done: int = 0
    _attempts: dict[int, int] = field(default_factory=dict)
    _todo: list[int] = field(default_factory=list)
    _under_way: set[int] = field(default_factory=set)
    _room: int = 1
    _trainers: int = 1

    @property
    def indices(self) -> tuple[int, ...]:
        """The microbatches of this epoch that this trainer answers for."""
        return tuple(sorted(self._attempts))

    def open(self, message: OpenStep) -> list[Action]:
        """A step begins: take up the own share of it."""
        trainers = [member.process for member in message.roster.trainers]
        first = message.roster.stages[0]
        self.dispatcher.trainers = tuple(trainers)
        actions = self.dispatcher.open(message.epoch, message.roster.ids[0], message.roster.shares[0])
        self.epoch, self.attempt = message.epoch, 0
        self._under_way.clear()
        self._attempts = dict.fromkeys(shares(tuple(trainers), self.microbatches).get(self.me, ()), 0)
        self._todo = list(self._attempts)
        self._room = (1 + WITHOUT_GRAPH) * sum(member.capacity for member in first)
        self._trainers = len(trainers)
        return actions + self._feed()

    def assign(self, message: Assign) -> list[Action]:
        """Microbatches of a dead trainer fall to this one. Peers may hold them: they are asked before one is sent."""
        fresh = [index for index in message.indices if index not in self._attempts]
        self.attempt = max(self.attempt, message.attempt)
        self._attempts |= dict.fromkeys(fresh, message.attempt)
        self._todo += fresh
        return self._feed()

    def trainer_gone(self) -> list[Action]:
        """One feeds less: those who are left may have more under way."""
        self._trainers = max(1, self._trainers - 1)
        return self._feed()

    def enter(self, member: Member, now: float) -> list[Action]:
        """A peer takes part amid the step: it may be of the first stage."""
        if member.stage != 0:
            return []
        return self.dispatcher.enter(member.process, member.capacity // self._trainers, now)

    def formed(self, event: MicrobatchFormed, now: float) -> list[Action]:
        """A microbatch is read: send it."""
        self.done += 1
        if event.microbatch.epoch != self.epoch:
            return [Release((event.tokens, event.targets))]
        attempt = self._attempts[event.microbatch.index]
        return self.dispatcher.offer(event.microbatch, (event.tokens, event.targets), now, attempt, repair=attempt > 0)

    def recall(self, sender: ProcessId, message: Recall) -> list[Action]:
        """A peer of stage 0 has given up its input."""
        entry = self.dispatcher.entries.get(message.microbatch.index)
        here = entry is not None and entry.microbatch == message.microbatch and not message.gradient
        bodies = entry.bodies if entry is not None and here else ()
        return [Send(sender, Recalled(message.microbatch, message.stage, message.gradient), bodies)]

    def message(
        self, sender: ProcessId, message: Accepted | SlotReserved | Denied | Routed | Backward, now: float
    ) -> list[Action]:
        """Stage 0 answers."""
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
                    self._under_way.discard(microbatch.index)
                    return self._feed()
        return []

    def _feed(self) -> list[Action]:
        self.window = max(1, -(-self._room // self._trainers))
        actions: list[Action] = []
        while self._todo and len(self._under_way) < self.window:
            index = self._todo.pop(0)
            self._under_way.add(index)
            actions.append(FormMicrobatch(Microbatch(self.epoch, index)))
        return actions
