"""What the simulated swarms of the tests are, and what they must have learnt."""

from __future__ import annotations

from pathlib import Path

from swarmflow.core.protocol.types import Plan, tied_ends
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator import faults
from swarmflow.simulator.arithmetic import digest, digest_of
from swarmflow.simulator.report import SimulationReport
from swarmflow.simulator.scenario import Scenario, load
from swarmflow.simulator.world import Settings, World

SETTINGS = Settings(Plan(stages=3, microbatches=8, shared=tied_ends(3)), steps=6, checkpoint_every=2)
SWARM = faults.FuzzSwarm(SETTINGS)
SETTLED_S = 6.0  # by then everybody has loaded its stage
PIPELINE = """
[run]
iterations = 3
[model]
stages = 3
microbatches = 4
activation_bytes = 1_000_000
parameters = 1000
token_bytes = 0
[[peers]]
count = 3
spread = true
forward_s = 1.0
backward_s = 2.0
capacity = 4
up_mbps = 80
[network]
latency_s = 0.1
"""
CHURN = """
[run]
iterations = 8
[model]
stages = 3
microbatches = 12
activation_bytes = 2_000_000
parameters = 300_000
[trainers]
count = 2
[[peers]]
count = 12
forward_s = { uniform = [0.1, 0.4] }
capacity = { integers = [1, 3] }
up_mbps = 200
down_mbps = 200
[network]
latency_s = { uniform = [0.01, 0.2] }
[churn]
leave_chance = 0.2
join_chance = 0.6
"""


def parameters(stage: int, version: int, microbatches: int = 8) -> str:
    """What a stage's parameters must be at a version: each microbatch of each step was learnt once."""
    expected = digest("initial", stage)
    for _ in range(version):
        expected = digest(expected, stage, digest_of(dict.fromkeys(range(microbatches), 1)))  # type: ignore[arg-type]
    return expected


def scenario(folder: Path, text: str) -> Scenario:
    """As a user writes it."""
    path = folder / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def simulated(folder: Path, text: str, policy: str = "swarmflow", seed: int = 0) -> tuple[Simulation, SimulationReport]:
    """A scenario's simulation and what it gives."""
    simulation = Simulation(scenario(folder, text), seed, policy)
    return simulation, simulation.run()


def fill_disks(world: World) -> World:
    """Fill the peers' disks: versions are copied from memory, and a step that is prepared waits for that."""
    world.disks.full.update(process.name for process in world.alive_peers())
    return world
