"""Which peer a microbatch is offered to next: the one decision in which routers differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol

from swarmflow.baselines.messages import BaselineOpen, Trip
from swarmflow.baselines.negotiation import GwtfNegotiation
from swarmflow.core.protocol.shares import shares
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import INFINITE, Link
from swarmflow.core.routing.iwrr import Iwrr


class NextHop(Protocol):
    """One sender's choice among the peers of one stage, and what became of it."""

    def open(self, opened: BaselineOpen, stage: int) -> None:
        """Take over the peers of the stage."""
        ...

    def choose(self, trip: Trip, exclude: Collection[ProcessId]) -> ProcessId | None:
        """Return the peer to ask; None: no peer can be asked."""
        ...

    def accepted(self, trip: Trip, process: ProcessId) -> None:
        """Handle an acceptance."""
        ...

    def denied(self, trip: Trip, process: ProcessId) -> None:
        """Handle a denial."""
        ...

    def done(self, trip: Trip, process: ProcessId, seconds: float) -> None:
        """Handle a forward pass that is done, so many seconds after the peer was asked."""
        ...

    def freed(self, trip: Trip) -> None:
        """Forget a microbatch: its gradient has returned, or it is given up."""
        ...

    def lost(self, process: ProcessId) -> None:
        """Handle the death of a peer."""
        ...


class StochasticWiring:
    """SWARM's stochastic wiring (Algorithm 1): interleaved weighted round-robin by measured response times."""

    def __init__(self) -> None:
        self._router = Iwrr()

    def open(self, opened: BaselineOpen, stage: int) -> None:
        """Newcomers begin at the least total time; a banned peer that is listed again may be chosen again."""
        self._router.links.keep(frozenset(opened.stages[stage]))
        self._router.begin_epoch(opened.stages[stage])

    def choose(self, trip: Trip, exclude: Collection[ProcessId]) -> ProcessId | None:
        """Return the peer with the smallest total time."""
        choice = self._router.choose(exclude)
        return None if choice is None else choice.process

    def accepted(self, trip: Trip, process: ProcessId) -> None:
        """Measure nothing."""

    def denied(self, trip: Trip, process: ProcessId) -> None:
        """Measure nothing: the dispatcher excludes a full peer until it has room."""

    def done(self, trip: Trip, process: ProcessId, seconds: float) -> None:
        """Measure a response time, queue and network included."""
        self._router.links.record_response(process, seconds, self._router.links.now_s)
        self._router.refresh(process)

    def freed(self, trip: Trip) -> None:
        """Measure nothing."""

    def lost(self, process: ProcessId) -> None:
        """Ban it."""
        self._router.remove_peer(process)


class FixedRoute:
    """The next peer of the pipeline that the microbatch belongs to."""

    def __init__(self) -> None:
        self._pipeline: tuple[ProcessId | None, ...] = ()

    def open(self, opened: BaselineOpen, stage: int) -> None:
        """Take over the peer of this stage in each pipeline."""
        self._pipeline = tuple(pipeline[stage] for pipeline in opened.pipelines)

    def choose(self, trip: Trip, exclude: Collection[ProcessId]) -> ProcessId | None:
        """Return the one peer, unless it is excluded or dead."""
        process = self._pipeline[trip.pipeline] if trip.pipeline < len(self._pipeline) else None
        return None if process in exclude else process

    def accepted(self, trip: Trip, process: ProcessId) -> None:
        """Do nothing."""

    def denied(self, trip: Trip, process: ProcessId) -> None:
        """Do nothing: the peer is asked again when it has room."""

    def done(self, trip: Trip, process: ProcessId, seconds: float) -> None:
        """Do nothing."""

    def freed(self, trip: Trip) -> None:
        """Do nothing."""

    def lost(self, process: ProcessId) -> None:
        """Break its pipeline."""
        self._pipeline = tuple(None if other == process else other for other in self._pipeline)


class FlowRoute:
    """A flow of the microbatch's data node, each unit of which carries one microbatch at a time.

    Where no unit is free, the peer whose link costs least.
    """

    def __init__(self, flows: GwtfNegotiation) -> None:
        self._flows = flows
        self._peers: tuple[ProcessId, ...] = ()
        self._source: dict[int, ProcessId] = {}
        self._carried: dict[Trip, Link] = {}

    def open(self, opened: BaselineOpen, stage: int) -> None:
        """Take over the peers: flows may lead to others, which take part from the next iteration."""
        self._peers = opened.stages[stage]
        given = shares(opened.trainers, self._flows.microbatches)
        self._source = {index: trainer for trainer, indices in given.items() for index in indices}
        self._carried = {trip: link for trip, link in self._carried.items() if trip.iteration == opened.iteration}

    def choose(self, trip: Trip, exclude: Collection[ProcessId]) -> ProcessId | None:
        """Return the peer of the flow with the smallest share of units in use; of equals, that of the cheapest link."""
        self.freed(trip)
        there = {process: self._flows.costs.get(process, INFINITE) for process in self._peers if process not in exclude}
        taken, source = Counter(self._carried.values()), self._source[trip.index]
        flows = {process: units for (process, of), units in self._flows.outflow.items() if of == source}
        free = [
            (taken[process, source] / units, there[process], process)
            for process, units in flows.items()
            if process in there and taken[process, source] < units
        ]
        if free:
            process = min(free)[2]
            self._carried[trip] = process, source
            return process
        return min(there, key=lambda process: (there[process], process), default=None)

    def accepted(self, trip: Trip, process: ProcessId) -> None:
        """Do nothing."""

    def denied(self, trip: Trip, process: ProcessId) -> None:
        """Do nothing: the dispatcher excludes the peer until it has room again (V-D)."""

    def done(self, trip: Trip, process: ProcessId, seconds: float) -> None:
        """Do nothing: costs are not measured."""

    def freed(self, trip: Trip) -> None:
        """Free the unit of a microbatch."""
        self._carried.pop(trip, None)

    def lost(self, process: ProcessId) -> None:
        """Remove the peer, and free its units."""
        self._peers = tuple(other for other in self._peers if other != process)
        self._carried = {trip: link for trip, link in self._carried.items() if link[0] != process}
