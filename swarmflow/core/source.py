"""The trainer's own microbatches: formed by the data rule, sent to stage 0, awaited until complete."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.actions import Action, FormMicrobatch, Release
from swarmflow.core.events import MicrobatchFormed
from swarmflow.core.messages import Accepted, Backward, Denied, Open, Routed
from swarmflow.core.outbox import Outbox
from swarmflow.core.types import BEFORE_ALL, Epoch, Microbatch, ProcessId


@dataclass(slots=True)
class Source:
    """Feeds the microbatches that fall to this trainer into the pipeline, no more at a time than the stages hold.

    Microbatch i of a step belongs to trainer i mod (number of trainers); what it holds is a matter of the data rule
    and not of who forms it.
    """

    me: ProcessId
    microbatches: int
    outbox: Outbox
    epoch: Epoch = BEFORE_ALL
    window: int = 1
    _todo: list[int] = field(default_factory=list)
    _under_way: set[int] = field(default_factory=set)

    def open(self, message: Open) -> list[Action]:
        """A step begins: take up the own share of it."""
        trainers = [member.process for member in message.roster.trainers]
        actions = self.outbox.open(tuple(m.process for m in message.roster.stages[0]))
        self.epoch = message.epoch
        self._under_way.clear()
        if self.me not in trainers:
            self._todo = []
            return actions
        share = range(trainers.index(self.me), self.microbatches, len(trainers))
        self._todo = list(share)
        narrowest = min(sum(member.capacity for member in stage) for stage in message.roster.stages)
        self.window = max(1, -(-narrowest // len(trainers)))
        return actions + self._feed()

    def formed(self, event: MicrobatchFormed, now: float) -> list[Action]:
        """A microbatch is read: send it."""
        if event.microbatch.epoch != self.epoch:
            return [Release((event.tokens, event.targets))]
        return self.outbox.offer(event.microbatch, (event.tokens, event.targets), now)

    def message(
        self, sender: ProcessId, message: Accepted | Denied | Routed | Backward, now: float
    ) -> list[Action]:
        """Stage 0 answers."""
        microbatch = message.microbatch
        if microbatch.epoch != self.epoch:
            return []
        match message:
            case Accepted():
                self.outbox.accepted(sender, microbatch, message.attempt)
            case Denied():
                return self.outbox.denied(sender, microbatch, message.attempt, message.reason, now)
            case Routed():
                self.outbox.routed(sender, microbatch, message.attempt, message.successor, now)
            case Backward():
                if self.outbox.returned(sender, microbatch, message.attempt, now):
                    self._under_way.discard(microbatch.index)
                    return self._feed()
        return []

    def _feed(self) -> list[Action]:
        actions: list[Action] = []
        while self._todo and len(self._under_way) < self.window:
            index = self._todo.pop(0)
            self._under_way.add(index)
            actions.append(FormMicrobatch(Microbatch(self.epoch, index)))
        return actions
