"""What a simulation needs of a swarm, whoever decides in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from swarmflow.core.messages import StepResult
from swarmflow.core.types import ProcessId
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.measure import Meter
from swarmflow.simulator.settings import Settings


@dataclass(frozen=True, slots=True)
class PeerLife:
    """One life of a peer so far.

    stage: whose state it holds, or held last; -1: none yet. died_s: infinite while it lives. busy_s: seconds in which
    it computed.
    """

    process: ProcessId
    stage: int
    began_s: float
    died_s: float
    busy_s: float

    @property
    def alive(self) -> bool:
        """Whether it lives."""
        return self.died_s == float("inf")


class Swarm(Protocol):
    """Peers and trainers on a clock, a network and computers, whose spending a meter counts.

    on_result: told of each iteration that is learnt. ended: nothing will come any more. trace: given a line for all
    that happens. stopwatch: of the computer that simulates. counts: what else happened, by name.
    """

    settings: Settings
    clock: Clock
    meter: Meter
    counts: Counter[str]
    ended: bool
    on_result: Callable[[StepResult], None] | None
    trace: Callable[[str], None] | None
    stopwatch: Callable[[], float] | None

    def start_trainer(self, name: str, lead: bool = False) -> None:
        """Start a trainer. lead: the one that is to lead."""
        ...

    def start_peer(self, name: str, wish: int = -1) -> ProcessId | None:
        """Start a peer. wish: the stage that it asks for, -1: any. None: it comes a little later."""
        ...

    def kill(self, process: ProcessId) -> None:
        """It is gone without a word."""
        ...

    def alive_peers(self) -> list[ProcessId]:
        """Peers that are alive, in the order of their ids."""
        ...

    def peers(self) -> list[ProcessId]:
        """All lives of peers that ever began, in the order in which they did."""
        ...

    def life(self, process: ProcessId) -> PeerLife:
        """What there is to say of a peer."""
        ...

    @property
    def waiting_for(self) -> str:
        """What it waits for, in words, when it stands still."""
        ...
