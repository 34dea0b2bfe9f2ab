"""The policies that swarmflow is compared with (docs/baselines.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from swarmflow.baselines.arena import Arena, BaselineRules
from swarmflow.baselines.dispatcher import Repair
from swarmflow.baselines.next_hop import Fixed, Wired
from swarmflow.baselines.pipelines import Pipelines, Unlined
from swarmflow.policies.flows import along_flows, negotiation
from swarmflow.policies.oracle import arranged
from swarmflow.simulator.settings import Settings, Surroundings


@dataclass(frozen=True, slots=True)
class Baseline:
    """An arena of machines that follow other rules."""

    name: str
    rules: BaselineRules

    def swarm(self, settings: Settings, seed: int, surroundings: Callable[[Random], Surroundings]) -> Arena:
        """An empty arena."""
        return Arena(settings, seed, surroundings, self.rules)


SWARM = Baseline("swarm", BaselineRules(lambda _: Wired(), Repair.RESEND, lambda _: Unlined()))
SWARM_RESTART = Baseline("swarm-restart", BaselineRules(lambda _: Wired(), Repair.RESTART, lambda _: Unlined()))
GPIPE = Baseline("gpipe", BaselineRules(lambda _: Fixed(), Repair.LINE, lambda _: Pipelines()))
DTFM = Baseline("dtfm", BaselineRules(lambda _: Fixed(), Repair.LINE, arranged))
GWTF = Baseline("gwtf", BaselineRules(along_flows, Repair.RESEND, lambda _: Unlined(), negotiation))
