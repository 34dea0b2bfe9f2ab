"""A peer of a baseline: joins, loads a stage, takes part in iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from swarmflow.baselines.dispatcher import Repair
from swarmflow.baselines.hop_table import BaselineHopTable
from swarmflow.baselines.machine import BaselineRuntime, BaselineTask
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
from swarmflow.core.protocol.types import ProcessId

HEARTBEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class BaselinePeerSettings:
    """What a peer of a baseline is configured with."""

    stages: int  # of the model
    wish: int  # the stage that it asks for; -1: any
    speed: float  # that it reports when it joins
    repair: Repair
    heartbeats: bool  # whether it sends heartbeats, where broken connections do not show that it is dead


@dataclass(slots=True)
class BaselinePeer:
    """One life of a peer: joins, loads a stage, takes part in iterations."""

    runtime: BaselineRuntime
    leader: ProcessId
    settings: BaselinePeerSettings
    next_hop: Callable[[], NextHop]  # makes the routing of one stage
    flows: GwtfNegotiation | None = None  # where flows are negotiated
    stage: int = field(init=False, default=-1)  # that it serves; -1: none
    iteration: int = field(init=False, default=-1)
    revision: int = field(init=False, default=-1)
    hops: BaselineHopTable | None = field(init=False, default=None)
    reduction: BaselineReduction | None = field(init=False, default=None)
    _granted: int = field(init=False, default=0)  # counts the stages that it was granted
    # Messages of an iteration that has not begun here.
    _early: list[tuple[ProcessId, BaselineMessage]] = field(init=False, default_factory=list)

    @property
    def slots(self) -> int:
        """Microbatches that it holds."""
        return 0 if self.hops is None else self.hops.admission.taken

    @property
    def slots_max(self) -> int:
        """Microbatches that it may hold."""
        return 0 if self.hops is None else self.hops.admission.slots_max

    @property
    def graphs(self) -> int:
        """Microbatches whose graphs it keeps."""
        return 0 if self.hops is None else self.hops.admission.graphs

    def start(self) -> None:
        """Join."""
        wish = self.settings.wish
        self.runtime.send(self.leader, BaselineJoin(wish, self.settings.speed, self.runtime.capacity(max(0, wish))))
        if self.settings.heartbeats:
            self.runtime.after(HEARTBEAT_S, self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        self.runtime.send(self.leader, Alive())
        self.runtime.after(HEARTBEAT_S, self._send_heartbeat)

    def received(self, sender: ProcessId, message: BaselineMessage) -> None:
        """Handle a message."""
        match message:
            case BaselineGranted():
                self._grant(message)
            case Present() | BaselineNegotiate():
                if self.flows is not None:
                    self.flows.received(sender, message)
            case BaselineOpen():
                self._open(message)
            case BaselineGone():
                self.lost(message.process)
            case Aggregate():
                self.reduction = BaselineReduction(self.runtime, message, self._reduced)
                self._take_early()
                self._reduce_if_done()
            case BaselinePart() | BaselineSum():
                self._reduce(sender, message)
            case BaselineAsk() if message.trip.iteration < self.iteration:
                pass
            case BaselineAsk() if message.trip.iteration > self.iteration or self.hops is None:
                self._early.append((sender, message))  # BaselineOpen takes a longer path
            case _ if self.hops is not None:
                self._hop(self.hops, sender, message)

    def _hop(self, hops: BaselineHopTable, sender: ProcessId, message: BaselineMessage) -> None:
        match message:
            case BaselineAsk():
                hops.ask(sender, message)
            case BaselineAccepted():
                hops.dispatcher.accepted(sender, message)
            case BaselineDenied():
                hops.dispatcher.denied(sender, message)
            case BaselineRoom():
                hops.dispatcher.room(sender)
            case BaselineForward():
                hops.forward(sender, message)
            case Computed():
                hops.dispatcher.computed(sender, message.trip)
            case BaselineRouted():
                hops.dispatcher.routed(sender, message)
            case BaselineBackward():
                hops.backward(sender, message)
            case BaselineAbandon():
                hops.abandon(sender, message)

    def lost(self, process: ProcessId) -> None:
        """Stop waiting for a dead process."""
        if self.hops is not None:
            self.hops.lost(process)
        if self.reduction is not None:
            self.reduction.lost(process)
        if self.flows is not None:
            self.flows.lost(process)

    def _grant(self, message: BaselineGranted) -> None:
        self.hops = self.reduction = None
        self.runtime.drop()
        if self.flows is not None:
            self.flows.stop()
        self.stage = -1
        self._granted += 1
        self.runtime.load(message.stage, message.donors, partial(self._loaded, message.stage, self._granted))

    def _loaded(self, stage: int, granted: int) -> None:
        if granted == self._granted:
            self.stage = stage
            self.runtime.send(self.leader, BaselineReady(stage))

    def _open(self, opened: BaselineOpen) -> None:
        if self.stage < 0 or (opened.iteration, opened.revision) <= (self.iteration, self.revision):
            return
        same = opened.iteration == self.iteration and self.hops is not None
        self.iteration, self.revision = opened.iteration, opened.revision
        if same and self.hops is not None:
            self.hops.revise(opened)
            return
        self.reduction = None
        if self.hops is None:
            how = self.next_hop(), self.settings.repair, self._reduce_if_done
            self.hops = BaselineHopTable(self.runtime, self.stage, self.settings.stages, *how)
        self.hops.open(opened)
        self._take_early()

    def _take_early(self) -> None:
        early, self._early = self._early, []
        for sender, message in early:
            self.received(sender, message)

    def _reduce_if_done(self) -> None:
        """Begin to sum, unless gradients of parameters are left to compute."""
        waits = self.hops is not None and self.hops.unfinished
        if self.reduction is not None and not self.reduction.started and not waits:
            self.reduction.start()

    def _reduce(self, sender: ProcessId, message: BaselinePart | BaselineSum) -> None:
        reduction = self.reduction
        if reduction is None or reduction.aggregate.iteration < message.iteration:
            self._early.append((sender, message))
        elif reduction.aggregate.iteration == message.iteration and isinstance(message, BaselinePart):
            reduction.add_part(sender, message)
        elif reduction.aggregate.iteration == message.iteration and isinstance(message, BaselineSum):
            reduction.take_sum(sender, message)

    def _reduced(self) -> None:
        """Report the sums, and make the update before all that comes next; nobody waits for it, as in swarmflow."""
        self.runtime.send(self.leader, Updated(self.iteration))
        self.runtime.compute(BaselineTask("update", None, lambda: None))
