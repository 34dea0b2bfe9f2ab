"""The interface of a policy: a name, and swarms that act by it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from swarmflow.simulator.settings import Environment, Settings
from swarmflow.simulator.swarm import Swarm


class Policy(Protocol):
    """Makes swarms. Two policies differ only in what their processes decide and send."""

    @property
    def name(self) -> str:
        """The name in a scenario."""
        ...

    def swarm(self, settings: Settings, seed: int, make_environment: Callable[[Random], Environment]) -> Swarm:
        """Return a swarm without processes. make_environment: makes its network and computers from a Random."""
        ...
