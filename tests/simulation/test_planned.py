"""Placement by a plan of the links in whole swarms: what it gives between regions, and that nothing is lost."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from swarmflow.core.protocol.types import Plan
from swarmflow.forecast.simulation import Simulation
from swarmflow.planning.stage_choice import plan_stages
from swarmflow.simulator.fuzz import Hunt, play
from swarmflow.simulator.report import SimulationReport
from swarmflow.simulator.scenario import load
from swarmflow.simulator.settings import Settings
from swarmflow.simulator.world import World

SCENARIO = """
[run]
iterations = 20
placement = "{placement}"

[model]
stages = 2
microbatches = 24
activation_bytes = 131_072
codec_ratio = 2.0
parameters = 4_000_000
forward_flops = 1e9
backward_flops = 2e9

[trainers]
region = "east"

[[peers]]
count = 6
capacity = 8
flops = 1e10
region = ["east", "west"]
up_mbps = 1000
down_mbps = 1000

[network]
regions = ["east", "west"]
latency_matrix_s = "latency_s.csv"
mbps_matrix = "mbps.csv"
"""


def simulated(folder: Path, placement: str, seed: int) -> SimulationReport:
    (folder / "latency_s.csv").write_text("0.001,0.02\n0.02,0.001\n", encoding="utf-8")
    (folder / "mbps.csv").write_text("40,4\n4,40\n", encoding="utf-8")
    file = folder / f"{placement}.toml"
    file.write_text(SCENARIO.format(placement=placement), encoding="utf-8")
    report = Simulation(load(file), seed, "swarmflow").run()
    assert report.outcome == "finished"
    return report


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.extended)])
def test_the_peers_of_a_stage_come_together_where_sums_are_large(tmp_path: Path, seed: int) -> None:
    """Two regions of three peers, 40 Mb/s within and 4 Mb/s between: a stage in both exchanges its sums slowly."""
    auto, planned = (simulated(tmp_path, placement, seed) for placement in ("auto", "planned"))
    last_s = [statistics.median(row.seconds for row in report.iterations[-10:]) for report in (auto, planned)]
    assert last_s[0] > 3 * last_s[1]
    assert sum(row.moves for row in planned.iterations[-10:]) == 0, "it stays as it is once it is as planned"


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_whatever_a_plan_says(seed: int) -> None:
    """Plans that nobody would make, under faults: any stage for any peer, as often as one is asked for."""
    hunt = Hunt(planned=True)
    assert play(seed, hunt).ended
    assert str(hunt) == " --planned"


def test_a_new_leader_has_the_links_measured_again() -> None:
    settings = Settings(Plan(2, 8), steps=60, rebalance_s=20.0, planner=plan_stages, compute_s=(0.5, 0.6))
    world = World(settings, 3)
    for number in range(2):
        world.start_trainer(f"t{number}", lead=number == 0)
    for number in range(4):
        world.start_peer(f"p{number}")
    world.clock.run(lambda: len(world.results) > 4, 1e4)
    leader = next(process for process, machine in world.trainers.items() if machine.lead is not None)
    world.kill(leader)
    world.clock.run(lambda: any(machine.lead is not None for p, machine in world.trainers.items() if p != leader), 1e4)
    lead = next(m.lead for p, m in world.trainers.items() if p != leader and m.lead is not None)
    assert lead.plans is not None
    assert lead.plans.links.peers == []
    assert world.clock.run(lambda: lead.plans is not None and len(lead.plans.links.peers) == 4, 1e4)
    assert world.clock.run(lambda: lead.plans is not None and lead.plans.number > 0, 1e4), "and plans by them"
