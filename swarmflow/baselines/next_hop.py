"""Who is asked to take a microbatch next: the one decision in which routers differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Protocol

from swarmflow.baselines.messages import BaselineOpen, Trip
from swarmflow.baselines.negotiation import GwtfNegotiation
from swarmflow.core.flow.node_types import INFINITE, Link
from swarmflow.core.iwrr import Iwrr
from swarmflow.core.source import shares
from swarmflow.core.types import ProcessId


class NextHop(Protocol):
    """One sender's view of one stage. It is told what became of what it chose."""

    def open(self, opened: BaselineOpen, stage: int) -> None:
        """These serve the stage from now on."""
        ...

    def choose(self, trip: Trip, exclude: Collection[ProcessId]) -> ProcessId | None:
        """The peer to ask; None: nobody."""
        ...

    def accepted(self, trip: Trip, process: ProcessId) -> None:
        """It took it."""
        ...

    def denied(self, trip: Trip, process: ProcessId) -> None:
        """It did not."""
        ...

    def done(self, trip: Trip, process: ProcessId, seconds: float) -> None:
        """It has computed its forward pass, so many seconds after it was asked."""
        ...

    def freed(self, trip: Trip) -> None:
        """Its gradient has come back, or nobody waits for it any more."""
        ...

    def lost(self, process: ProcessId) -> None:
        """It is dead."""
        ...


class Wired:
    """SWARM's stochastic wiring (Algorithm 1): interleaved weighted round-robin by measured response times."""

    def __init__(self) -> None:
        self._router = Iwrr()

    def open(self, opened: BaselineOpen, stage: int) -> None:
        """Those who are new begin at the least total time; who was banned and is named is back."""
        self._router.announce(opened.stages[stage])

    def choose(self, trip: Trip, exclude: Collection[ProcessId]) -> ProcessId | None:
        """The peer with the smallest total time."""
        choice = self._router.choose(exclude)
        return None if choice is None else choice.process

    def accepted(self, trip: Trip, process: ProcessId) -> None:
        """Nothing is learnt from it."""

    def denied(self, trip: Trip, process: ProcessId) -> None:
        """Nothing is learnt from it: who is full is left alone until it says that it has room."""

    def done(self, trip: Trip, process: ProcessId, seconds: float) -> None:
        """A response time, queue and network included."""
        self._router.measured(process, seconds)

    def freed(self, trip: Trip) -> None:
        """Nothing is learnt from it."""

    def lost(self, process: ProcessId) -> None:
        """Ban it."""
        self._router.ban(process)


class Fixed:
    """The next peer of the pipeline that the microbatch was given to."""

    def __init__(self) -> None:
        self._line: tuple[ProcessId | None, ...] = ()

    def open(self, opened: BaselineOpen, stage: int) -> None:
        """Who serves this stage in each pipeline."""
        self._line = tuple(line[stage] for line in opened.lines)

    def choose(self, trip: Trip, exclude: Collection[ProcessId]) -> ProcessId | None:
        """There is one, or nobody."""
        process = self._line[trip.line] if trip.line < len(self._line) else None
        return None if process in exclude else process

    def accepted(self, trip: Trip, process: ProcessId) -> None:
        """As it should be."""

    def denied(self, trip: Trip, process: ProcessId) -> None:
        """It is full; it is asked again when it has room."""

    def done(self, trip: Trip, process: ProcessId, seconds: float) -> None:
        """Nothing follows from it."""

    def freed(self, trip: Trip) -> None:
        """Nothing follows from it."""

    def lost(self, process: ProcessId) -> None:
        """Its pipeline is broken."""
        self._line = tuple(None if other == process else other for other in self._line)


class Flowing:
    """Along a flow of the microbatch's data node, each unit of which carries one at a time; else to the nearest.

    The nearest is whose link costs least. Who was denied by it asks the next one.
    """

    def __init__(self, flows: GwtfNegotiation) -> None:
        self._flows = flows
        self._peers: tuple[ProcessId, ...] = ()
        self._source: dict[int, ProcessId] = {}
        self._carried: dict[Trip, Link] = {}

    def open(self, opened: BaselineOpen, stage: int) -> None:
        """Flows may lead to others as well, who take part from the next iteration."""
        self._peers = opened.stages[stage]
        given = shares(opened.trainers, self._flows.microbatches)
        self._source = {index: trainer for trainer, indices in given.items() for index in indices}
        self._carried = {trip: link for trip, link in self._carried.items() if trip.iteration == opened.iteration}

    def choose(self, trip: Trip, exclude: Collection[ProcessId]) -> ProcessId | None:
        """The flow of which the least is taken, and of those the one whose link costs least."""
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
        """As it should be."""

    def denied(self, trip: Trip, process: ProcessId) -> None:
        """It is left out until it has room again (V-D)."""

    def done(self, trip: Trip, process: ProcessId, seconds: float) -> None:
        """Costs are not measured from it."""

    def freed(self, trip: Trip) -> None:
        """Its unit may carry another one."""
        self._carried.pop(trip, None)

    def lost(self, process: ProcessId) -> None:
        """Nothing goes there any more, and nothing is on its way there."""
        self._peers = tuple(other for other in self._peers if other != process)
        self._carried = {trip: link for trip, link in self._carried.items() if link[0] != process}
