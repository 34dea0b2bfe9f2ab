"""Makes the machines that decide in a world: those of swarmflow, or others with the same protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.pipeline.dispatcher import dispatcher_for
from swarmflow.core.pipeline.source import MicrobatchSource
from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.types import Plan, ProcessId

M = TypeVar("M", bound=TrainerMachine)


@dataclass(frozen=True, slots=True)
class TrainerStart:
    """What a trainer begins with."""

    lease: LeaderLease
    plan: Plan
    rules: LeaderSettings
    join: Join
    version: int  # the newest on its disk
    roots: tuple[str, ...]  # of the stages' files of that version
    leads: Leader | None  # what it leads with, for the one that begins as the leader

    def machine(self, kind: type[M]) -> M:
        """Return a trainer's machine of a class, with the router of the run."""
        me, plan = self.join.member, self.plan
        own = dispatcher_for(plan, me.process, 0), plan.without_graph
        source = MicrobatchSource(me.process, plan.microbatches, *own)
        return kind(me, self.lease, plan, self.rules, source, self.join, self.version, self.roots, self.leads)


class Machines(Protocol):
    """Makes one machine for each process. A machine knows only what messages and its own device tell it.

    A policy that differs from swarmflow in one decision makes the production machines with that decision replaced: the
    protocol around it, and its cost, stay the same.
    """

    def peer(self, me: ProcessId, lease: LeaderLease, plan: Plan, settings: PeerSettings) -> PeerMachine:
        """Return the machine of a peer."""
        ...

    def trainer(self, start: TrainerStart) -> TrainerMachine:
        """Return the machine of a trainer."""
        ...


class Production:
    """Makes the machines that `swarmflow peer` and `swarmflow trainer` run."""

    def peer(self, me: ProcessId, lease: LeaderLease, plan: Plan, settings: PeerSettings) -> PeerMachine:
        """Return the machine of a peer."""
        return PeerMachine(me, lease, plan, settings)

    def trainer(self, start: TrainerStart) -> TrainerMachine:
        """Return the machine of a trainer."""
        return start.machine(TrainerMachine)


PRODUCTION = Production()
