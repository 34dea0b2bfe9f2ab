"""One life of a process in a world in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swarmflow.core.peer import PeerMachine
from swarmflow.core.trainer import TrainerMachine
from swarmflow.core.types import ProcessId
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.network import NetworkPath

if TYPE_CHECKING:
    from swarmflow.simulator.device import Device

WAKES_MAX = 100_000  # in one moment; a flow node solves its part in thousands of turns (Negotiation.tick)


@dataclass(slots=True)
class Link:
    """One end of a connection. there: the other one's host, as long as that has its end too."""

    path: NetworkPath
    there: Host | None = None


@dataclass(slots=True)
class Host:
    """A process. Until frozen_until_s it does nothing. wake_s: when its machine has something to do, at the latest.
    woken_s: when it had last; wakes: how often before, in that very moment.

    skew_s: how far its clock is ahead. stored: the bytes that it holds. links: to whom it has a connection. began_s,
    died_s: its life.
    """

    process: ProcessId
    machine: PeerMachine | TrainerMachine
    device: Device
    wish: int = -1
    alive: bool = True
    wake_s: float = float("inf")
    woken_s: float = -1.0
    wakes: int = 0
    frozen_until_s: float = 0.0
    skew_s: float = 0.0
    stored: dict[int, object] = field(default_factory=dict)
    links: dict[ProcessId, Link] = field(default_factory=dict)
    began_s: float = 0.0
    died_s: float = float("inf")

    def wake(self, now_s: float) -> None:
        """Its machine is due. Raises InvariantViolated where it is so again and again, as nothing follows."""
        self.wakes = self.wakes + 1 if self.woken_s == now_s else 0
        self.wake_s, self.woken_s = float("inf"), now_s
        if self.wakes > WAKES_MAX:
            raise InvariantViolated(f"{self.process} is due again and again at {now_s} s, and nothing follows")
