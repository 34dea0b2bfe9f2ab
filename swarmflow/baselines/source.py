"""A trainer's own microbatches: sent to stage 0, tracked, and started over where no other repair is possible."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from swarmflow.baselines.dispatcher import BaselineDispatcher, Repair
from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import (
    BaselineAbandon,
    BaselineAccepted,
    BaselineBackward,
    BaselineDenied,
    BaselineMessage,
    BaselineOpen,
    BaselineRoom,
    BaselineRouted,
    Broken,
    Computed,
    Learnt,
    Path,
    Trip,
)
from swarmflow.baselines.next_hop import NextHop
from swarmflow.core.protocol.shares import shares
from swarmflow.core.protocol.types import ProcessId


@dataclass(slots=True)
class BaselineSource:
    """A trainer's microbatches: number i of an iteration is that of trainer i mod (number of trainers)."""

    runtime: BaselineRuntime
    leader: ProcessId
    microbatches: int  # an iteration, of all trainers
    next_hop: NextHop
    repair: Repair
    dispatcher: BaselineDispatcher = field(init=False)
    opened: BaselineOpen | None = field(init=False, default=None)  # the current iteration, without dead peers
    _began_s: dict[int, float] = field(init=False, default_factory=dict)
    _homeless: list[Trip] = field(init=False, default_factory=list)  # microbatches for which no pipeline is whole

    def __post_init__(self) -> None:
        self.dispatcher = BaselineDispatcher(
            self.runtime,
            0,
            self.next_hop,
            self.repair,
            on_path=self._routed,
            on_broken=self._restart,
            on_stale=self._restart,
        )

    def open(self, opened: BaselineOpen) -> None:
        """Begin an iteration, or go on with other peers."""
        before, self.opened = self.opened, opened
        if before is not None and before.iteration == opened.iteration:
            self.dispatcher.revise(opened)
            homeless, self._homeless = self._homeless, []
            for trip in homeless:
                self._send(replace(trip, pipeline=self._pipeline(trip)))
            return
        self.dispatcher.open(opened)
        self._began_s.clear()
        self._homeless.clear()
        for index in shares(opened.trainers, self.microbatches).get(self.runtime.me, ()):
            pipeline = opened.given[index] if opened.given else -1
            self._began_s[index] = self.runtime.now_s
            self._send(Trip(opened.iteration, index, 0, pipeline))

    def received(self, sender: ProcessId, message: BaselineMessage) -> None:
        """Handle an answer of stage 0, or the report of a later stage that a path is broken."""
        match message:
            case BaselineAccepted():
                self.dispatcher.accepted(sender, message)
            case BaselineDenied():
                self.dispatcher.denied(sender, message)
            case BaselineRoom():
                self.dispatcher.room(sender)
            case Computed():
                self.dispatcher.computed(sender, message.trip)
            case BaselineRouted():
                self.dispatcher.routed(sender, message)
            case BaselineBackward():
                if self.dispatcher.returned(sender, message.trip):
                    seconds = self.runtime.now_s - self._began_s[message.trip.index]
                    self.runtime.send(self.leader, Learnt(message.trip, message.path, seconds))
            case Broken():
                self._restart(message.trip)

    def lost(self, process: ProcessId) -> None:
        """Repair what a dead peer held."""
        if self.opened is not None:
            pipelines = tuple(
                tuple(None if p == process else p for p in pipeline) for pipeline in self.opened.pipelines
            )
            self.opened = replace(self.opened, pipelines=pipelines)
        self.dispatcher.lost(process)

    def _send(self, trip: Trip) -> None:
        if self.repair is Repair.PIPELINE and trip.pipeline < 0:
            self._homeless.append(trip)
            return
        size = sum(self.runtime.tensor_bytes(0, kind) for kind in ("tokens", "targets"))
        self.dispatcher.offer(trip, self.runtime.me, size)
        self.dispatcher.ready(trip)

    def _routed(self, trip: Trip, path: Path) -> None:
        """Do nothing: the dispatcher keeps the path."""

    def _restart(self, trip: Trip) -> None:
        """Start a microbatch over; its holders abandon it."""
        entry = self.dispatcher.in_flight.get(trip)
        if entry is None or entry.returned:
            return
        path = entry.path
        self.dispatcher.drop(trip)
        for process in path[1:]:
            self.runtime.send(process, BaselineAbandon(trip))
        self.runtime.count("retries")
        self.runtime.count("microbatches_restarted")
        again = replace(trip, turn=trip.turn + 1)
        self._send(replace(again, pipeline=self._pipeline(again)) if self.repair is Repair.PIPELINE else again)

    def _pipeline(self, trip: Trip) -> int:
        """Return the whole pipeline that has the fewest of the own microbatches; -1: none is whole."""
        assert self.opened is not None
        whole = [number for number, pipeline in enumerate(self.opened.pipelines) if None not in pipeline]
        given = Counter(entry.trip.pipeline for entry in self.dispatcher.in_flight.values() if not entry.returned)
        return min(whole, key=lambda number: (given[number], number), default=-1)
