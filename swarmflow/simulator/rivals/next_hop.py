"""Who is asked to take a microbatch next: the one decision in which routers differ."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from swarmflow.core.iwrr import Iwrr
from swarmflow.core.types import ProcessId
from swarmflow.simulator.rivals.words import Opened, Trip


class NextHop(Protocol):
    """One sender's view of one stage. It is told what became of what it chose."""

    def open(self, said: Opened, stage: int) -> None:
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

    def lost(self, process: ProcessId) -> None:
        """It is dead."""
        ...


class Wired:
    """SWARM's stochastic wiring (Algorithm 1): interleaved weighted round-robin by measured response times."""

    def __init__(self) -> None:
        self._router = Iwrr()

    def open(self, said: Opened, stage: int) -> None:
        """Those who are new begin at the least total time; who was banned and is named is back."""
        self._router.announce(said.stages[stage])

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

    def lost(self, process: ProcessId) -> None:
        """Ban it."""
        self._router.ban(process)


class Fixed:
    """The next peer of the pipeline that the microbatch was given to."""

    def __init__(self) -> None:
        self._line: tuple[ProcessId | None, ...] = ()

    def open(self, said: Opened, stage: int) -> None:
        """Who serves this stage in each pipeline."""
        self._line = tuple(line[stage] for line in said.lines)

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

    def lost(self, process: ProcessId) -> None:
        """Its pipeline is broken."""
        self._line = tuple(None if other == process else other for other in self._line)
