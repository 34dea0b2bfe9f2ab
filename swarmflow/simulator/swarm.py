"""What a simulation needs of a swarm, whatever machines decide in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from swarmflow.core.protocol.messages import StepResult
from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.measure import Meter
from swarmflow.simulator.settings import Settings


@dataclass(frozen=True, slots=True)
class PeerLife:
    """The record of one life of a peer so far."""

    process: ProcessId
    stage: int  # whose state it holds, or held last; -1: none yet
    began_s: float
    died_s: float  # infinite while it is alive
    busy_s: float  # seconds in which it computed

    @property
    def alive(self) -> bool:
        """Whether the peer is alive."""
        return self.died_s == float("inf")


class Swarm(Protocol):
    """Peers and trainers in virtual time, on a pretended network and pretended computers."""

    settings: Settings
    clock: Clock
    meter: Meter
    counts: Counter[str]  # other events, by name
    ended: bool  # no further iteration will follow
    on_result: Callable[[StepResult], None] | None  # called with the result of each iteration
    trace: Callable[[str], None] | None  # called with each line of the trace
    stopwatch: Callable[[], float] | None  # CPU time of the computer that simulates

    def start_trainer(self, name: str, lead: bool = False) -> None:
        """Start a trainer. lead: it is to lead."""
        ...

    def start_peer(self, name: str, wish: int = -1) -> ProcessId | None:
        """Start a peer. wish: the stage that it asks for, -1: any. Returns None where it starts a little later."""
        ...

    def kill(self, process: ProcessId) -> None:
        """End a process without a message."""
        ...

    def alive_peers(self) -> list[ProcessId]:
        """Return the peers that are alive, in the order of their ids."""
        ...

    def peers(self) -> list[ProcessId]:
        """Return all lives of peers that ever began, in the order in which they did."""
        ...

    def life(self, process: ProcessId) -> PeerLife:
        """Return the record of a peer's life so far."""
        ...

    @property
    def waiting_for(self) -> str:
        """What the swarm waits for when it stands still, as a text."""
        ...
