"""What a policy is to the simulator: a name, and a swarm that acts by it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from swarmflow.simulator.settings import Settings, Surroundings
from swarmflow.simulator.swarm import Swarm


class Policy(Protocol):
    """Makes swarms. All that differs between two policies is what their processes decide and say to each other."""

    @property
    def name(self) -> str:
        """As it is written in a scenario."""
        ...

    def swarm(self, settings: Settings, seed: int, surroundings: Callable[[Random], Surroundings]) -> Swarm:
        """An empty swarm. surroundings: makes the network and the computers from the swarm's random numbers."""
        ...
