"""Strategies beside each other on the same machines: what each costs, and how long it took to find."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from random import Random

from swarmflow.planning.arrangement import Arrangement, Problem
from swarmflow.planning.strategies import STRATEGIES


@dataclass(frozen=True, slots=True)
class Planned:
    """What a strategy has found. evaluated: arrangements whose cost was computed. planning_s: of CPU time."""

    strategy: str
    arrangement: Arrangement
    evaluated: int
    planning_s: float


def planned(problem: Problem, strategy: str, seed: int) -> Planned:
    """Arrange the devices by one strategy."""
    fresh = replace(problem)  # what another strategy has computed is not known to this one
    began_s = time.process_time()
    arrangement = STRATEGIES[strategy](fresh, Random(seed))
    return Planned(strategy, arrangement, fresh.evaluated, time.process_time() - began_s)
