"""What a policy is to the simulator: it makes the machines that decide, one for each process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from swarmflow.core.following import Following
from swarmflow.core.leader import Leader
from swarmflow.core.messages import Join
from swarmflow.core.peer import PeerMachine
from swarmflow.core.rules import LeaderSettings
from swarmflow.core.serving.service import PeerSettings
from swarmflow.core.trainer import TrainerMachine
from swarmflow.core.types import Plan, ProcessId


@dataclass(frozen=True, slots=True)
class Basis:
    """The newest version that a trainer has on its disk, and the digests of its stages' files."""

    version: int
    digests: tuple[str, ...]


class Policy(Protocol):
    """Makes machines. A machine knows what it is told by messages and by its own device, and nothing of the world.

    A baseline that differs from swarmflow in one decision makes the production machines with that decision replaced;
    so the protocol around it, and what it costs, is the same for all that are compared.
    """

    @property
    def name(self) -> str:
        """As it is written in a scenario."""
        ...

    def peer(self, me: ProcessId, following: Following, plan: Plan, settings: PeerSettings) -> PeerMachine:
        """What decides for a peer."""
        ...

    def trainer(
        self, following: Following, plan: Plan, rules: LeaderSettings, join: Join, basis: Basis,
        leads: Leader | None, late_min_s: float,
    ) -> TrainerMachine:  # fmt: skip
        """What decides for a trainer. leads: what it leads with, for the one that begins as the leader."""
        ...
