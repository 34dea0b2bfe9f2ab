"""What the simulated swarms of the tests are, and what they must have learnt."""

from __future__ import annotations

from swarmflow.core.types import Plan
from swarmflow.simulator.arithmetic import digest, digest_of
from swarmflow.simulator.faults import Scenario
from swarmflow.simulator.world import Settings

SETTINGS = Settings(Plan(stages=3, microbatches=8, tied=True), steps=6, checkpoint_every=2)
SWARM = Scenario(SETTINGS)
SETTLED_S = 6.0  # by then everybody has loaded its stage


def parameters(stage: int, version: int, microbatches: int = 8) -> str:
    """What a stage's parameters must be at a version: each microbatch of each step was learnt once."""
    expected = digest("initial", stage)
    for _ in range(version):
        expected = digest(expected, stage, digest_of(dict.fromkeys(range(microbatches), 1)))  # type: ignore[arg-type]
    return expected
