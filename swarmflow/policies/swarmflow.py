"""The policy `swarmflow`: the machines that swarmflow runs with, as they are."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from swarmflow.simulator.settings import Settings, Surroundings
from swarmflow.simulator.world import World


class Swarmflow:
    """A world of production machines."""

    name = "swarmflow"

    def swarm(self, settings: Settings, seed: int, surroundings: Callable[[Random], Surroundings]) -> World:
        """An empty world."""
        return World(settings, seed, surroundings)
