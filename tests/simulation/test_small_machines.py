"""Simulated swarms of machines that cannot hold every stage: nobody is granted one that does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.errors import ConfigError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.faults import finish
from swarmflow.simulator.fuzz import Hunt, play
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.scenario import load
from tests.further import seeds
from tests.simulation.samples import SETTLED_S, SWARM

UNEQUAL = """
[run]
iterations = 3
[model]
stages = 3
microbatches = 8
costs = [3, 1, 1]
parameters = [3000, 1000, 1000]
stage_memory_bytes = [300, 100, 100]
microbatch_memory_bytes = 10
[[peers]]
count = 3
forward_s = 0.1
memory_bytes = 150
[[peers]]
count = 2
forward_s = 0.1
memory_bytes = 400
"""


@pytest.mark.parametrize("seed", seeds(4, 40))
def test_nothing_is_lost_although_half_of_the_peers_are_small(seed: int) -> None:
    """The world itself raises where a peer loads a stage for which it has no memory."""
    hunt = Hunt(small=True)
    assert play(seed, hunt).ended
    assert str(hunt) == " --small"


def scenario(folder: Path, text: str) -> Path:
    path = folder / "unequal.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_large_stage_goes_to_those_that_can_hold_it(tmp_path: Path) -> None:
    simulation = Simulation(load(scenario(tmp_path, UNEQUAL)), 0, "swarmflow")
    report = simulation.run()
    assert report.outcome == "finished"
    stages = {process.name: simulation.world.life(process).stage for process in simulation.world.peers()}
    assert {stages[name] for name in ("p0", "p1", "p2")} == {1, 2}, "the small ones"
    assert 0 in {stages[name] for name in ("p3", "p4")}


def test_without_anybody_who_could_hold_it_the_simulation_does_not_begin(tmp_path: Path) -> None:
    tiny = UNEQUAL.replace("memory_bytes = 150", "memory_bytes = 105").replace(
        "memory_bytes = 400", "memory_bytes = 105"
    )
    with pytest.raises(ConfigError, match="at most 105, but a stage with one microbatch takes 110"):
        load(scenario(tmp_path, tiny))


def test_baselines_know_nothing_of_unequal_stages(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="swarm places peers whatever their memory; give one number for all"):
        Simulation(load(scenario(tmp_path, UNEQUAL)), 0, "swarm")


def test_a_list_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"stage_memory_bytes.*must have one for each of the 3 stages"):
        load(scenario(tmp_path, UNEQUAL.replace("[300, 100, 100]", "[300, 100]")))


def test_the_world_raises_where_a_peer_holds_more_than_it_has_memory_for() -> None:
    world = SWARM.start(0)
    world.clock.run(lambda: world.clock.now_s > SETTLED_S, SETTLED_S + 1.0)
    for process in world.alive_peers():
        world.hosts[process].device.loading.capacity = 0
    with pytest.raises(InvariantViolated, match="and its capacity is 0"):
        finish(world)
