"""The policy `swarmflow`: the machines of production."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from swarmflow.simulator.settings import Environment, Settings
from swarmflow.simulator.world import World


class Swarmflow:
    """Runs the machines of production."""

    name = "swarmflow"

    def swarm(self, settings: Settings, seed: int, make_environment: Callable[[Random], Environment]) -> World:
        """Return a world without processes."""
        return World(settings, seed, make_environment)
