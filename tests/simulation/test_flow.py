"""Whole swarms whose microbatches follow flows, negotiated beside the training: calm, with churn, and under faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.core.machines.peer import PeerMachine
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.fuzz import Hunt, main, play
from swarmflow.simulator.host import WAKES_MAX
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.world import World
from tests.further import more, more_of, seeds
from tests.simulation.samples import CHURN, SWARM, scenario, simulated

CALM = """
[run]
iterations = 8
router = "flow"
[model]
stages = 3
microbatches = 12
activation_bytes = 20_000_000
[trainers]
count = 2
[[peers]]
count = 9
spread = true
capacity = 4
forward_s = 0.5
[network]
latency_s = { uniform = [0.01, 0.1] }
mbps = { uniform = [50, 500] }
"""


@pytest.mark.parametrize(
    ("router", "bytes_per_s_max"), [("flow", 1000.0), ("gwtf", 5000.0), *more_of(("gwtf-sum", 5000.0))]
)
def test_in_a_calm_swarm_flows_carry_what_the_trainers_form(
    tmp_path: Path, router: str, bytes_per_s_max: float
) -> None:
    """bytes_per_s_max: of background negotiation, a process."""
    simulation, report = simulated(tmp_path, CALM.replace('"flow"', f'"{router}"'))
    assert report.outcome == "finished"
    world = simulation.world
    assert isinstance(world, World)
    parts = [machine.flows for host in world.hosts.values() if (machine := host.machine).flows is not None]
    nodes = [part.node for part in parts if part.node is not None]
    for stage in range(-1, 3):
        units = [sum(node.outflow.values()) for node in nodes if node.view.stage == stage]
        assert sum(units) == 12, f"stage {stage}"
    assert all(node.held <= node.view.capacity for node in nodes)
    assert report.counts["routed:flow"] > report.counts["routed:shortest"] / 3
    seconds = sum(row.seconds for row in report.iterations if row.measured)
    assert report.wire_bytes["Negotiate"] / seconds / len(nodes) < bytes_per_s_max


def test_what_is_measured_becomes_the_cost_of_a_link(tmp_path: Path) -> None:
    simulation, _ = simulated(tmp_path, CALM)
    world = simulation.world
    assert isinstance(world, World)
    machines = [host.machine for host in world.hosts.values() if isinstance(host.machine, PeerMachine)]
    first = [machine.flows.node for machine in machines if machine.flows is not None and machine.stage == 0]
    for node in first:
        assert node is not None
        for receiver in node.view.after:  # 10 MB at 50 to 500 Mb/s, latency there and back, and 1.5 s of computing
            assert 1.5 <= node.view.cost[receiver] <= 1.5 + 20e6 / 50e6 * 8 + 1.0


@pytest.mark.parametrize("router", ["flow", "gwtf"])
def test_flows_outlive_churn(tmp_path: Path, router: str) -> None:
    simulation, report = simulated(tmp_path, CHURN.replace("[run]", f'[run]\nrouter = "{router}"'), seed=1)
    assert report.outcome == "finished"
    assert simulation.churn.deaths > 0
    assert report.counts["routed:flow"] > 0


def test_the_same_seed_gives_the_same_trace(tmp_path: Path) -> None:
    def trace() -> list[str]:
        lines: list[str] = []
        Simulation(scenario(tmp_path, CALM.replace("= 8", "= 2", 1)), 0, "swarmflow", trace=lines.append).run()
        return lines

    assert trace() == trace()


@pytest.mark.parametrize("seed", [*seeds(2, 9, first=791_001), *more(791_000)])
def test_nothing_is_lost_under_faults(seed: int) -> None:
    world = play(seed, Hunt("flow", earlier=True))
    assert world.counts["messages_ignored:Negotiate"] <= world.meter.messages["Negotiate"] / 10


@pytest.mark.parametrize("seed", seeds(1, 7, first=792_000))
def test_nothing_is_lost_under_faults_while_gwtf_negotiates(seed: int) -> None:
    world = play(seed, Hunt("gwtf"))
    assert world.counts["messages_ignored:Negotiate"] <= world.meter.messages["Negotiate"] / 10


def test_the_hunt_takes_a_router(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1", "--first", "7", "--router", "flow"]) == 0
    assert "1 seeds from 7 on" in capsys.readouterr().out


def test_who_solves_in_thousands_of_turns_of_one_moment_is_not_taken_for_one_that_spins() -> None:
    world = SWARM.start(0)
    host = world.hosts[world.launcher.latest["p0"]]
    for _ in range(10_000):
        host.wake(1.0)
    host.wakes = WAKES_MAX
    with pytest.raises(InvariantViolated, match="due again and again"):
        host.wake(1.0)
