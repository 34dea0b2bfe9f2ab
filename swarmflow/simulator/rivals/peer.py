"""A peer of a baseline: joins, loads a stage, takes part in iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from swarmflow.core.types import ProcessId
from swarmflow.simulator.rivals.hands import Hands
from swarmflow.simulator.rivals.hops import Hops
from swarmflow.simulator.rivals.negotiation import Negotiation
from swarmflow.simulator.rivals.next_hop import NextHop
from swarmflow.simulator.rivals.reduction import Reduction
from swarmflow.simulator.rivals.sender import Repair
from swarmflow.simulator.rivals.words import (
    Abandon,
    Accepted,
    Aggregate,
    Alive,
    Ask,
    Backward,
    Computed,
    Denied,
    Forward,
    Gone,
    Granted,
    Join,
    Negotiate,
    Opened,
    Part,
    Present,
    Ready,
    Room,
    Routed,
    Updated,
    Whole,
    Word,
)

ALIVE_S = 1.0


@dataclass(slots=True)
class Peer:
    """One life of a peer. leader: never dies. speed: told when it joins. tells: each second, that it lives.
    flows: where they are negotiated."""

    hands: Hands
    leader: ProcessId
    stages: int
    wish: int
    speed: float
    repair: Repair
    next_hop: Callable[[], NextHop]
    tells: bool
    flows: Negotiation | None = None
    stage: int = -1
    iteration: int = -1
    revision: int = -1
    hops: Hops | None = None
    reduction: Reduction | None = None
    _granted: int = 0
    _early: list[tuple[ProcessId, Word]] = field(default_factory=list)

    @property
    def slots(self) -> int:
        """Microbatches that it holds."""
        return 0 if self.hops is None else self.hops.slots

    def start(self) -> None:
        """Join."""
        self.hands.send(self.leader, Join(self.wish, self.speed, self.hands.capacity(max(0, self.wish))))
        if self.tells:
            self.hands.after(ALIVE_S, self._tell)

    def _tell(self) -> None:
        self.hands.send(self.leader, Alive())
        self.hands.after(ALIVE_S, self._tell)

    def heard(self, sender: ProcessId, word: Word) -> None:
        """A message came."""
        match word:
            case Granted():
                self._grant(word)
            case Present() | Negotiate():
                if self.flows is not None:
                    self.flows.heard(sender, word)
            case Opened():
                self._open(word)
            case Gone():
                self.lost(word.process)
            case Aggregate():
                self.reduction = Reduction(self.hands, word, self._reduced)
                self.reduction.start()
                self._take_early()
            case Part() | Whole():
                self._reduce(sender, word)
            case Ask() if word.trip.iteration < self.iteration:
                pass
            case Ask() if word.trip.iteration > self.iteration or self.hops is None:
                self._early.append((sender, word))  # the leader's word that it is to begin has a longer way
            case _ if self.hops is not None:
                self._hop(self.hops, sender, word)

    def _hop(self, hops: Hops, sender: ProcessId, word: Word) -> None:
        match word:
            case Ask():
                hops.ask(sender, word)
            case Accepted():
                hops.sender.accepted(sender, word)
            case Denied():
                hops.sender.denied(sender, word)
            case Room():
                hops.sender.room(sender)
            case Forward():
                hops.forward(sender, word)
            case Computed():
                hops.sender.computed(sender, word.trip)
            case Routed():
                hops.sender.routed(sender, word)
            case Backward():
                hops.backward(sender, word)
            case Abandon():
                hops.abandon(sender, word)

    def lost(self, process: ProcessId) -> None:
        """A process is dead."""
        if self.hops is not None:
            self.hops.lost(process)
        if self.reduction is not None:
            self.reduction.lost(process)
        if self.flows is not None:
            self.flows.lost(process)

    def _grant(self, word: Granted) -> None:
        self.hops = self.reduction = None
        self.hands.drop()
        if self.flows is not None:
            self.flows.stop()
        self.stage = -1
        self._granted += 1
        self.hands.load(word.stage, word.donors, partial(self._loaded, word.stage, self._granted))

    def _loaded(self, stage: int, granted: int) -> None:
        if granted == self._granted:
            self.stage = stage
            self.hands.send(self.leader, Ready(stage))

    def _open(self, said: Opened) -> None:
        if self.stage < 0 or (said.iteration, said.revision) <= (self.iteration, self.revision):
            return
        same = said.iteration == self.iteration and self.hops is not None
        self.iteration, self.revision = said.iteration, said.revision
        if same and self.hops is not None:
            self.hops.revise(said)
            return
        self.reduction = None
        if self.hops is None:
            self.hops = Hops(self.hands, self.stage, self.stages, self.next_hop(), self.repair)
        self.hops.open(said)
        self._take_early()

    def _take_early(self) -> None:
        early, self._early = self._early, []
        for sender, word in early:
            self.heard(sender, word)

    def _reduce(self, sender: ProcessId, word: Part | Whole) -> None:
        if self.reduction is None or self.reduction.said.iteration < word.iteration:
            self._early.append((sender, word))
        elif self.reduction.said.iteration == word.iteration and isinstance(word, Part):
            self.reduction.part(word)
        elif self.reduction.said.iteration == word.iteration and isinstance(word, Whole):
            self.reduction.whole(word)

    def _reduced(self) -> None:
        self.hands.compute("update", None, self._updated)

    def _updated(self) -> None:
        self.hands.send(self.leader, Updated(self.iteration))
