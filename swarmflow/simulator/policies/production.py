"""The policy `swarmflow`: the machines that swarmflow runs with, as they are."""

from __future__ import annotations

from swarmflow.core.following import Following
from swarmflow.core.iwrr import Iwrr
from swarmflow.core.leader import Leader
from swarmflow.core.messages import Join
from swarmflow.core.outbox import Outbox
from swarmflow.core.peer import PeerMachine
from swarmflow.core.rules import LeaderSettings
from swarmflow.core.serving.service import PeerSettings
from swarmflow.core.source import Source
from swarmflow.core.trainer import TrainerMachine
from swarmflow.core.types import Plan, ProcessId
from swarmflow.simulator.policies.policy import Basis


class Production:
    """Router `iwrr`, repair from the journals, one exact step after the other."""

    name = "swarmflow"

    def peer(self, me: ProcessId, following: Following, plan: Plan, settings: PeerSettings) -> PeerMachine:
        """A peer as `swarmflow peer` runs it."""
        return PeerMachine(me, following, plan, settings)

    def trainer(
        self, following: Following, plan: Plan, rules: LeaderSettings, join: Join, basis: Basis,
        leads: Leader | None, late_min_s: float,
    ) -> TrainerMachine:  # fmt: skip
        """A trainer as `swarmflow trainer` runs it."""
        outbox = Outbox(0, Iwrr(), late_min_s=late_min_s)
        source = Source(join.member.process, plan.microbatches, outbox)
        return TrainerMachine(join.member, following, plan, rules, source, join, basis.version, basis.digests, leads)
