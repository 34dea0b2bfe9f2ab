"""Simulated annealing: changes for the worse are made with a falling probability (GWTF, V-C; Johnson et al., 1989)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

TEMPERATURE = 1.7  # GWTF, VI
COOLING = 0.95


@dataclass(slots=True)
class Annealing:
    """The temperature of one node, and its decisions."""

    random: Random
    temperature: float = TEMPERATURE  # T, in the unit of the costs
    cooling: float = COOLING  # alpha, the factor of T after each accepted change
    loss_max: float = math.inf  # times T: what a change costs at most that another node's annealing wants

    def wants(self, gain: float) -> bool:
        """Return whether to make a change that saves `gain`: exp(gain / T) > U(0, 1)."""
        if gain > 0:
            return True
        if self.temperature <= 0 or gain == 0:  # a change that saves nothing only costs messages
            return False
        return math.exp(gain / self.temperature) > self.random.random()

    def bears(self, gain: float) -> bool:
        """Return whether a change that another node's annealing wants may be made: it costs at most loss_max T."""
        return -gain <= self.loss_max * self.temperature

    def changed(self) -> None:
        """Cool down: a change was accepted."""
        self.temperature *= self.cooling
