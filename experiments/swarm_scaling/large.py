"""A large swarm at work: whether it is simulated in real time, and whether a peer's decisions cost more in it."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from experiments.common.rows import Row, row
from experiments.swarm_scaling.cases import POLICY, costs
from experiments.swarm_scaling.costs import Metered
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.scenario import Scenario, load
from swarmflow.simulator.world import World

SIZES = (1000, 4000, 10_000)
MICROBATCHES_A_PEER = 10  # of a step, for each peer to compute
KEPT = 16  # peers whose decisions are timed once more, alone
TIMED = 16  # of so many decisions one is timed: to look at the clock takes as long as a short decision


@dataclass(frozen=True, slots=True)
class Large:
    """What came of one size. cpu_s, peak_bytes: of this process, the measuring included."""

    peers: int
    virtual_s: float
    cpu_s: float
    peak_bytes: int
    happened: int
    deaths: int
    utilisation: float
    metered: Metered


def scenario(peers: int) -> Scenario:
    """The file, with so many peers, and a step to match."""
    read = load(Path(__file__).parent / "large.toml")
    microbatches = MICROBATCHES_A_PEER * peers // read.model.stages
    return replace(
        read, peers=(replace(read.peers[0], count=peers),), model=replace(read.model, microbatches=microbatches)
    )


def measure(peers: int, seed: int) -> Large:
    """Simulate from the start of the processes to the end of the step. Raises SwarmflowError when there is none."""
    simulation, metered = Simulation(scenario(peers), seed, POLICY), Metered(time.thread_time, TIMED, peers // KEPT)
    assert isinstance(simulation.world, World)
    simulation.world.machines = metered
    began_s = time.process_time()
    report = simulation.run()
    cpu_s = time.process_time() - began_s
    if report.outcome != "finished":
        raise SwarmflowError(f"{peers} peers: {report.outcome} {'; '.join(report.violations)}")
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    [step] = report.iterations
    return Large(peers, report.virtual_s, cpu_s, peak_bytes, report.happened, step.deaths, step.utilisation, metered)


def rows(found: Large) -> Iterator[Row]:
    """How fast it was, and what decisions cost a peer and the leader."""
    setting = f"{found.peers} peers"
    for metric, value in (
        ("Virtual time, s", found.virtual_s),
        ("CPU, s", found.cpu_s),
        ("Virtual seconds a CPU second", found.virtual_s / found.cpu_s),
        ("Peak memory, MiB", found.peak_bytes / 2**20),
        ("CPU of an event, us", 1e6 * found.cpu_s / found.happened),
        ("Peers that died", found.deaths),
        ("Utilisation of the peers, %", 100 * found.utilisation),
    ):
        yield row(setting, POLICY, metric, [value])
    yield from costs(setting, found.metered, found.peers, found.virtual_s)


def fits(found: Sequence[Large]) -> Iterator[Row]:
    """What of a peer's costs grows: how much more the largest swarm's are, and lines through them over log2 n.

    Were they in proportion to log n, they would grow by as much as it does.
    """
    if len(found) < 2:
        return
    logs = [math.log2(each.peers) for each in found]
    least, most = found[0], found[-1]
    name = f"{least.peers} to {most.peers} peers"
    yield row(name, POLICY, "log n grows by a factor of", [logs[-1] / logs[0]])
    every = [{r.metric: r.mean for r in costs("", each.metered, each.peers, each.virtual_s)} for each in found]
    for metric in every[0]:
        values = [each[metric] for each in every]
        yield row(name, POLICY, f"{metric}: grows by a factor of", [values[-1] / values[0]])
        yield row(name, POLICY, f"{metric}: more for twice the peers", [float(np.polyfit(logs, values, 1)[0])])
