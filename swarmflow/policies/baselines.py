"""The policies that swarmflow is compared with (docs/baselines.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from swarmflow.baselines.dispatcher import Repair
from swarmflow.baselines.next_hop import FixedRoute, StochasticWiring
from swarmflow.baselines.pipelines import NoPipelines, Pipelines
from swarmflow.baselines.world import BaselineVariant, BaselineWorld
from swarmflow.policies.flows import along_flows, negotiation
from swarmflow.policies.oracle import arranged
from swarmflow.simulator.settings import Environment, Settings


@dataclass(frozen=True, slots=True)
class Baseline:
    """A policy that runs the machines of a baseline."""

    name: str
    variant: BaselineVariant

    def swarm(self, settings: Settings, seed: int, make_environment: Callable[[Random], Environment]) -> BaselineWorld:
        """Return a swarm without processes."""
        return BaselineWorld(settings, seed, make_environment, self.variant)


SWARM = Baseline("swarm", BaselineVariant(lambda _: StochasticWiring(), Repair.RESEND, lambda _: NoPipelines()))
SWARM_RESTART = Baseline(
    "swarm-restart", BaselineVariant(lambda _: StochasticWiring(), Repair.RESTART, lambda _: NoPipelines())
)
GPIPE = Baseline("gpipe", BaselineVariant(lambda _: FixedRoute(), Repair.PIPELINE, lambda _: Pipelines()))
DTFM = Baseline("dtfm", BaselineVariant(lambda _: FixedRoute(), Repair.PIPELINE, arranged))
GWTF = Baseline("gwtf", BaselineVariant(along_flows, Repair.RESEND, lambda _: NoPipelines(), negotiation))
