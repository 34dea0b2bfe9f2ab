"""The policies that swarmflow is compared with (docs/baselines.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from swarmflow.baselines.arena import Arena, BaselineRules
from swarmflow.baselines.dispatcher import Repair
from swarmflow.baselines.next_hop import FixedRoute, StochasticWiring
from swarmflow.baselines.pipelines import NoPipelines, Pipelines
from swarmflow.policies.flows import along_flows, negotiation
from swarmflow.policies.oracle import arranged
from swarmflow.simulator.settings import Settings, Surroundings


@dataclass(frozen=True, slots=True)
class Baseline:
    """A policy that runs the machines of a baseline."""

    name: str
    rules: BaselineRules

    def swarm(self, settings: Settings, seed: int, surroundings: Callable[[Random], Surroundings]) -> Arena:
        """Return an arena without processes."""
        return Arena(settings, seed, surroundings, self.rules)


SWARM = Baseline("swarm", BaselineRules(lambda _: StochasticWiring(), Repair.RESEND, lambda _: NoPipelines()))
SWARM_RESTART = Baseline(
    "swarm-restart", BaselineRules(lambda _: StochasticWiring(), Repair.RESTART, lambda _: NoPipelines())
)
GPIPE = Baseline("gpipe", BaselineRules(lambda _: FixedRoute(), Repair.PIPELINE, lambda _: Pipelines()))
DTFM = Baseline("dtfm", BaselineRules(lambda _: FixedRoute(), Repair.PIPELINE, arranged))
GWTF = Baseline("gwtf", BaselineRules(along_flows, Repair.RESEND, lambda _: NoPipelines(), negotiation))
