"""The policies that swarmflow is compared with (docs/baselines.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from swarmflow.baselines.arena import Arena, Rules
from swarmflow.baselines.next_hop import Fixed, Wired
from swarmflow.baselines.pipelines import Pipelines, Unlined
from swarmflow.baselines.sender import Repair
from swarmflow.policies.flows import along_flows, negotiation
from swarmflow.policies.oracle import arranged
from swarmflow.simulator.settings import Settings, Surroundings


@dataclass(frozen=True, slots=True)
class Baseline:
    """An arena of machines that follow other rules."""

    name: str
    rules: Rules

    def swarm(self, settings: Settings, seed: int, surroundings: Callable[[Random], Surroundings]) -> Arena:
        """An empty arena."""
        return Arena(settings, seed, surroundings, self.rules)


SWARM = Baseline("swarm", Rules(lambda _: Wired(), Repair.RESEND, lambda _: Unlined()))
SWARM_RESTART = Baseline("swarm-restart", Rules(lambda _: Wired(), Repair.RESTART, lambda _: Unlined()))
GPIPE = Baseline("gpipe", Rules(lambda _: Fixed(), Repair.LINE, lambda _: Pipelines()))
DTFM = Baseline("dtfm", Rules(lambda _: Fixed(), Repair.LINE, arranged))
GWTF = Baseline("gwtf", Rules(along_flows, Repair.RESEND, lambda _: Unlined(), negotiation))
