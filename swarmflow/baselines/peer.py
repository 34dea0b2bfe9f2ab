"""A peer of a baseline: joins, loads a stage, takes part in iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from swarmflow.baselines.hops import BaselineHops
from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import (
    Aggregate,
    Alive,
    BaselineAbandon,
    BaselineAccepted,
    BaselineAsk,
    BaselineBackward,
    BaselineDenied,
    BaselineForward,
    BaselineGone,
    BaselineGranted,
    BaselineJoin,
    BaselineMessage,
    BaselineNegotiate,
    BaselineOpen,
    BaselinePart,
    BaselineReady,
    BaselineRoom,
    BaselineRouted,
    BaselineSum,
    Computed,
    Present,
    Updated,
)
from swarmflow.baselines.negotiation import GwtfNegotiation
from swarmflow.baselines.next_hop import NextHop
from swarmflow.baselines.reduction import BaselineReduction
from swarmflow.baselines.sender import Repair
from swarmflow.core.types import ProcessId

ALIVE_S = 1.0


@dataclass(slots=True)
class BaselinePeer:
    """One life of a peer. leader: never dies. speed: told when it joins. tells: each second, that it lives.
    flows: where they are negotiated."""

    hands: BaselineRuntime
    leader: ProcessId
    stages: int
    wish: int
    speed: float
    repair: Repair
    next_hop: Callable[[], NextHop]
    tells: bool
    flows: GwtfNegotiation | None = None
    stage: int = -1
    iteration: int = -1
    revision: int = -1
    hops: BaselineHops | None = None
    reduction: BaselineReduction | None = None
    _granted: int = 0
    _early: list[tuple[ProcessId, BaselineMessage]] = field(default_factory=list)

    @property
    def slots(self) -> int:
        """Microbatches that it holds."""
        return 0 if self.hops is None else self.hops.slots

    def start(self) -> None:
        """Join."""
        self.hands.send(self.leader, BaselineJoin(self.wish, self.speed, self.hands.capacity(max(0, self.wish))))
        if self.tells:
            self.hands.after(ALIVE_S, self._tell)

    def _tell(self) -> None:
        self.hands.send(self.leader, Alive())
        self.hands.after(ALIVE_S, self._tell)

    def heard(self, sender: ProcessId, word: BaselineMessage) -> None:
        """A message came."""
        match word:
            case BaselineGranted():
                self._grant(word)
            case Present() | BaselineNegotiate():
                if self.flows is not None:
                    self.flows.heard(sender, word)
            case BaselineOpen():
                self._open(word)
            case BaselineGone():
                self.lost(word.process)
            case Aggregate():
                self.reduction = BaselineReduction(self.hands, word, self._reduced)
                self.reduction.start()
                self._take_early()
            case BaselinePart() | BaselineSum():
                self._reduce(sender, word)
            case BaselineAsk() if word.trip.iteration < self.iteration:
                pass
            case BaselineAsk() if word.trip.iteration > self.iteration or self.hops is None:
                self._early.append((sender, word))  # the leader's word that it is to begin has a longer way
            case _ if self.hops is not None:
                self._hop(self.hops, sender, word)

    def _hop(self, hops: BaselineHops, sender: ProcessId, word: BaselineMessage) -> None:
        match word:
            case BaselineAsk():
                hops.ask(sender, word)
            case BaselineAccepted():
                hops.sender.accepted(sender, word)
            case BaselineDenied():
                hops.sender.denied(sender, word)
            case BaselineRoom():
                hops.sender.room(sender)
            case BaselineForward():
                hops.forward(sender, word)
            case Computed():
                hops.sender.computed(sender, word.trip)
            case BaselineRouted():
                hops.sender.routed(sender, word)
            case BaselineBackward():
                hops.backward(sender, word)
            case BaselineAbandon():
                hops.abandon(sender, word)

    def lost(self, process: ProcessId) -> None:
        """A process is dead."""
        if self.hops is not None:
            self.hops.lost(process)
        if self.reduction is not None:
            self.reduction.lost(process)
        if self.flows is not None:
            self.flows.lost(process)

    def _grant(self, word: BaselineGranted) -> None:
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
            self.hands.send(self.leader, BaselineReady(stage))

    def _open(self, said: BaselineOpen) -> None:
        if self.stage < 0 or (said.iteration, said.revision) <= (self.iteration, self.revision):
            return
        same = said.iteration == self.iteration and self.hops is not None
        self.iteration, self.revision = said.iteration, said.revision
        if same and self.hops is not None:
            self.hops.revise(said)
            return
        self.reduction = None
        if self.hops is None:
            self.hops = BaselineHops(self.hands, self.stage, self.stages, self.next_hop(), self.repair)
        self.hops.open(said)
        self._take_early()

    def _take_early(self) -> None:
        early, self._early = self._early, []
        for sender, word in early:
            self.heard(sender, word)

    def _reduce(self, sender: ProcessId, word: BaselinePart | BaselineSum) -> None:
        if self.reduction is None or self.reduction.said.iteration < word.iteration:
            self._early.append((sender, word))
        elif self.reduction.said.iteration == word.iteration and isinstance(word, BaselinePart):
            self.reduction.part(word)
        elif self.reduction.said.iteration == word.iteration and isinstance(word, BaselineSum):
            self.reduction.whole(word)

    def _reduced(self) -> None:
        self.hands.compute("update", None, self._updated)

    def _updated(self) -> None:
        self.hands.send(self.leader, Updated(self.iteration))
