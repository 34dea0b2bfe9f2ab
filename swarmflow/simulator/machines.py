"""The machines that decide in a world: those that swarmflow runs with, or others with the same protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from swarmflow.core.leader import Leader
from swarmflow.core.leader_lease import LeaderLease
from swarmflow.core.messages import Join
from swarmflow.core.peer import PeerMachine
from swarmflow.core.routers import dispatcher_for
from swarmflow.core.serving.peer_state import PeerSettings
from swarmflow.core.settings import LeaderSettings
from swarmflow.core.source import MicrobatchSource
from swarmflow.core.trainer import TrainerMachine
from swarmflow.core.types import Plan, ProcessId


@dataclass(frozen=True, slots=True)
class Basis:
    """The newest version that a trainer has on its disk, and the digests of its stages' files."""

    version: int
    digests: tuple[str, ...]


class Machines(Protocol):
    """Makes one machine for each process. It knows what it is told by messages and by its own device, and no more.

    What differs from swarmflow in one decision makes the production machines with that decision replaced; so the
    protocol around it, and what it costs, is the same.
    """

    def peer(self, me: ProcessId, lease: LeaderLease, plan: Plan, settings: PeerSettings) -> PeerMachine:
        """What decides for a peer."""
        ...

    def trainer(
        self, lease: LeaderLease, plan: Plan, rules: LeaderSettings, join: Join, basis: Basis, leads: Leader | None
    ) -> TrainerMachine:
        """What decides for a trainer. leads: what it leads with, for the one that begins as the leader."""
        ...


class Production:
    """As `swarmflow peer` and `swarmflow trainer` run them: the run's router, repair from journals, exact steps."""

    def peer(self, me: ProcessId, lease: LeaderLease, plan: Plan, settings: PeerSettings) -> PeerMachine:
        """A peer as `swarmflow peer` runs it."""
        return PeerMachine(me, lease, plan, settings)

    def trainer(
        self, lease: LeaderLease, plan: Plan, rules: LeaderSettings, join: Join, basis: Basis, leads: Leader | None
    ) -> TrainerMachine:
        """A trainer as `swarmflow trainer` runs it."""
        dispatcher = dispatcher_for(plan, join.member.process, 0)
        source = MicrobatchSource(join.member.process, plan.microbatches, dispatcher)
        return TrainerMachine(join.member, lease, plan, rules, source, join, basis.version, basis.digests, leads)


PRODUCTION = Production()
