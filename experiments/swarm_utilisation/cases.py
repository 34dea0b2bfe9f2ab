"""The scenarios of Table 1 and of the square-cube law, and what they give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.common.rows import Row, row
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.distributions import Constant
from swarmflow.simulator.report import SimulationReport
from swarmflow.simulator.scenario import Scenario, load

FOLDER = Path(__file__).parent
LAYERS = {"base": "base", "xxlarge": "xxlarge", "GPT-3": "gpt-3", "Ours": "ours"}
RTT_MS = (0, 10, 50, 100, 200)
PAPER = {  # Table 1, relative GPU utilisation in percent, by RTT_MS
    "base": (18.0, 11.8, 4.88, 2.78, 1.53),
    "xxlarge": (32.1, 28.9, 20.1, 14.9, 10.1),
    "GPT-3": (82.1, 79.3, 70.3, 60.2, 48.5),
    "Ours": (89.5, 87.2, 79.5, 71.5, 59.2),
}
WAITING_MS = {"base": 298.0, "xxlarge": 1204.0, "GPT-3": 1158.0, "Ours": 832.0}  # Figure 3, idle time a batch
MANY = 128  # microbatches that a peer holds: the inputs of GPT-3 are 1.6 GB then
WIDTHS = (768, 1024, 2048, 4096, 8192, 12288, 16384)
TOKENS = 512
V100_FLOPS = 12.5e12  # what Figure 3 and Table 6 come to for xxlarge (13.1e12) and GPT-3 (12.4e12)
RELATIVE, BUSY = "Relative GPU utilization", "GPU busy"
WAITING = "Waiting for network, ms"
RATIO, EXPONENT = "Computation / communication", "Exponent of the hidden size"


@dataclass(frozen=True, slots=True)
class UtilisationCase:
    """A cell of Table 1: a layer, a round trip, and how many microbatches a peer may hold."""

    layer: str
    rtt_ms: int
    held: int

    @property
    def setting(self) -> str:
        """As in the table."""
        return f"{self.layer}, {f'{self.rtt_ms}ms' if self.rtt_ms else 'none'}"

    @property
    def policy(self) -> str:
        """Always swarmflow's machines."""
        return f"swarmflow, {self.held} in flight"


def table_1(quick: bool) -> list[UtilisationCase]:
    """One microbatch at a time, as the paper; and several, as a swarm works."""
    rtt_ms, numbers = ((0, 100), (1, MANY)) if quick else (RTT_MS, (1, 4, MANY))
    return [UtilisationCase(layer, rtt, held) for held in numbers for layer in LAYERS for rtt in rtt_ms]


def scenario(case: UtilisationCase, quick: bool) -> Scenario:
    """The layer's file with this latency; more microbatches where more are in flight, so that few wait at the ends."""
    read = load(FOLDER / f"{LAYERS[case.layer]}.toml")
    peers = replace(read.peers[0], capacity=Constant(case.held))
    microbatches = {1: 20, 4: 100, MANY: 100 if quick else 400}[case.held]
    return replace(
        read,
        peers=(peers,),
        model=replace(read.model, microbatches=microbatches),
        network=replace(read.network, latency_s=Constant(case.rtt_ms / 2000)),
    )


def wide(width: int) -> Scenario:
    """One Transformer layer of this hidden size a stage: 12 d² parameters, 6 operations of each a token (Kaplan)."""
    read = load(FOLDER / "xxlarge.toml")
    forward = 2 * 12 * width**2 * TOKENS
    # The backward does the forward again (activation checkpointing): four times the forward in all.
    peers = replace(read.peers[0], forward_s=None, backward_s=None, flops=Constant(V100_FLOPS))
    model = replace(
        read.model,
        activation_bytes=2 * TOKENS * width,
        microbatches=20,
        forward_flops=3 * forward / 4,
        backward_flops=3 * 3 * forward / 4,
    )
    return replace(read, peers=(peers,), model=model)


def rows(case: UtilisationCase, scene: Scenario, report: SimulationReport) -> Iterator[Row]:
    """Utilisation as the paper defines it (of the one pipeline), and as the share of its time that a GPU computes."""
    stages = scene.model.stages
    busy = 100 * report.over(lambda iteration: iteration.utilisation)[0]
    if case.held == 1:
        paper = PAPER[case.layer][RTT_MS.index(case.rtt_ms)]
        yield row(case.setting, case.policy, RELATIVE, [stages * busy], paper)
        if case.rtt_ms == 0:
            seconds = report.over(lambda iteration: iteration.seconds)[0] / scene.model.microbatches
            waiting_ms = 1000 * seconds * (1 - stages * busy / 100)
            yield row(case.setting, case.policy, WAITING, [waiting_ms], WAITING_MS[case.layer])
    yield row(case.setting, case.policy, BUSY, [busy])


def square_cube(seed: int, widths: Sequence[int] = WIDTHS) -> Iterator[Row]:
    """Computation by communication of one microbatch, for growing layers, and the power of the width in it."""
    found: list[tuple[float, float]] = []
    for width in widths:
        report = run(wide(width), seed)
        computed_s = report.over(lambda iteration: iteration.useful_s / iteration.microbatches)[0]
        ratio = computed_s / report.over(lambda iteration: iteration.communication_s)[0]
        found.append((math.log(width), math.log(ratio)))
        yield row(f"d_model = {width}", "swarmflow, 1 in flight", RATIO, [ratio])
    yield row("square-cube law", "swarmflow, 1 in flight", EXPONENT, [slope(found)], 1.0)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line through the points, by least squares."""
    mean_x, mean_y = (sum(point[axis] for point in points) / len(points) for axis in (0, 1))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def run(scene: Scenario, seed: int) -> SimulationReport:
    """Simulate it under the policy swarmflow."""
    report = Simulation(scene, seed, "swarmflow").run()
    if report.outcome != "finished":
        raise RuntimeError(f"{scene.run.name}: {report.outcome} {report.violations}")
    return report
