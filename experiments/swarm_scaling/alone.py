"""What happened to one peer, decided once more without the others, whose machines fill the caches of this computer."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

from experiments.swarm_scaling.books import of_books
from swarmflow.core.election.leader_lease import LeaderLease
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.protocol.events import Event
from swarmflow.core.protocol.types import Plan, ProcessId
from swarmflow.errors import SwarmflowError

REPEATED = 3  # the least counts: nothing makes it shorter than it is


@dataclass(slots=True)
class RecordedLife:
    """All that one peer decided on, from its start. lease: as it was then. actions: how many came of it."""

    me: ProcessId
    lease: LeaderLease
    plan: Plan
    settings: PeerSettings
    events: list[tuple[Event, float]] = field(default_factory=list)
    actions: int = 0

    @classmethod
    def of(cls, me: ProcessId, lease: LeaderLease, plan: Plan, settings: PeerSettings) -> RecordedLife:
        """Of a peer that starts with these."""
        return cls(me, copy(lease), plan, settings)

    def again_s(self, clock: Callable[[], float]) -> tuple[float, float]:
        """The CPU time of the same decisions, alone: of those on the leader's books, the second, and of the others.

        Raises SwarmflowError where they are others: a machine that is given the same events decides the same.
        """
        return min((self._once_s(clock) for _ in range(REPEATED)), key=sum)

    def _once_s(self, clock: Callable[[], float]) -> tuple[float, float]:
        machine = PeerMachine(self.me, copy(self.lease), self.plan, self.settings)
        actions, books_s, began_s = 0, 0.0, clock()
        for event, now in self.events:
            if of_books(event):
                books_s -= clock()
                actions += len(machine.handle(event, now))
                books_s += clock()
            else:
                actions += len(machine.handle(event, now))
        spent_s = clock() - began_s
        if actions != self.actions:
            raise SwarmflowError(f"{self.me} decided {actions} actions instead of {self.actions} on the same events")
        return spent_s - books_s, books_s
