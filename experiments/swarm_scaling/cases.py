"""The sizes of the swarm, and what is measured of each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.common.rows import Row, row
from experiments.swarm_scaling.bound import served, step_bound_s
from experiments.swarm_scaling.costs import Metered
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.report import SimulationReport
from swarmflow.simulator.scenario import Scenario, load
from swarmflow.simulator.world import World

SIZES = (8, 16, 32, 64, 128, 256, 400)  # Figure 6 has 8 to 128; Table 3 has 400
FULL_SIZES = (1000,)
FIGURE_6 = 128
HOPS = 30  # of a step, for each peer to compute
PAPER_HOPS = 123  # SWARM's step of 16,384 samples, by the 133 peers of a stage
PAPER_SIZES = (400,)  # that are measured with it too
PEERS_A_TRAINER = 200
PAPER = {400: (17.6, 19.2)}  # Table 3, T4: samples a second, and those that there would be without a network
POLICY = "swarmflow"
THROUGHPUT, BEST, SHARE = "Throughput, microbatches/s", "Best-case, microbatches/s", "% of best-case"
WITHIN, BOUND = "% of best-case within the step's work", "% of best-case that fill, drain and whole microbatches allow"


@dataclass(frozen=True, slots=True)
class ScalingResult:
    """What came of one size.

    hops: for each peer to compute. seconds: of the step; work_s: of its passes; bound_s: the least that these can take.
    virtual_s: in which the costs arose.
    """

    peers: int
    hops: int
    seconds: float
    work_s: float
    bound_s: float
    microbatches: int
    best: float
    virtual_s: float
    metered: Metered

    @property
    def throughput(self) -> float:
        """Microbatches a second."""
        return self.microbatches / self.seconds


def scenario(peers: int, hops: int = HOPS) -> Scenario:
    """The file, with so many peers, and steps and trainers to match."""
    read = load(Path(__file__).parent / "swarm.toml")
    return replace(
        read,
        peers=(replace(read.peers[0], count=peers),),
        model=replace(read.model, microbatches=hops * peers // read.model.stages),
        trainers=replace(read.trainers, count=max(1, peers // PEERS_A_TRAINER)),
    )


def measure(peers: int, seed: int, hops: int = HOPS) -> ScalingResult:
    """Simulate one step. Raises SwarmflowError when it does not come to its end."""
    scene = scenario(peers, hops)
    simulation = Simulation(scene, seed, POLICY)
    metered = Metered(time.thread_time)
    assert isinstance(simulation.world, World)
    simulation.world.machines = metered
    report: SimulationReport = simulation.run()
    if report.outcome != "finished":
        raise SwarmflowError(f"{peers} peers: {report.outcome} {'; '.join(report.violations)}")
    group, only = scene.peers[0], report.iterations[0]
    assert group.forward_s is not None
    assert group.backward_s is not None
    each_s = group.forward_s.at(0.5) + group.backward_s.at(0.5)
    best = min(served(peers, scene.model.stages)) / each_s
    spent = only.seconds, metered.work.seconds, step_bound_s(scene)
    return ScalingResult(peers, hops, *spent, scene.model.microbatches, best, report.virtual_s, metered)


def rows(found: ScalingResult) -> Iterator[Row]:
    """Throughput, and what the decisions cost a peer and the leader."""
    setting = f"{found.peers} peers" + (f", {found.hops} hops" if found.hops != HOPS else "")
    paper = PAPER.get(found.peers, (None, None)) if found.hops == PAPER_HOPS else (None, None)
    yield row(setting, POLICY, THROUGHPUT, [found.throughput], paper[0])
    yield row(setting, POLICY, BEST, [found.best], paper[1])
    share = None if paper[0] is None or paper[1] is None else 100 * paper[0] / paper[1]
    best_s = found.microbatches / found.best
    yield row(setting, POLICY, SHARE, [100 * best_s / found.seconds])
    yield row(setting, POLICY, WITHIN, [100 * best_s / found.work_s], share)
    yield row(setting, POLICY, BOUND, [100 * best_s / found.bound_s])
    yield from costs(setting, found.metered, found.peers, found.virtual_s)


def costs(setting: str, metered: Metered, peers: int, spent_s: float) -> Iterator[Row]:
    """What the decisions of so many virtual seconds cost a peer, and the leader."""
    for name, cost, number in (("Peer", metered.peers, peers), ("Leader", metered.leader, 1)):
        each_s = number * spent_s
        yield row(setting, POLICY, f"{name}: decisions a second", [cost.decisions / each_s])
        yield row(setting, POLICY, f"{name}: messages sent a second", [cost.messages / each_s])
        yield row(setting, POLICY, f"{name}: bytes without tensors a second", [cost.sent_bytes / each_s])
        received_bytes = cost.received_bytes - cost.books_bytes
        yield row(setting, POLICY, f"{name}: bytes heard without tensors and books a second", [received_bytes / each_s])
        yield row(setting, POLICY, f"{name}: bytes of the leader's books heard", [cost.books_bytes / number])
        yield row(setting, POLICY, f"{name}: CPU of a decision, us", [1e6 * cost.cpu_s / cost.decisions])
        yield row(setting, POLICY, f"{name}: CPU of decisions a second, ms", [1e3 * cost.cpu_s / each_s])
        if cost is metered.peers and metered.lives:
            decision_s, books_s = metered.alone_s
            yield row(setting, POLICY, f"{name}: CPU of a decision once more, alone, us", [1e6 * decision_s])
            yield row(setting, POLICY, f"{name}: CPU of the books once more, alone, us", [1e6 * books_s])
        if cost.counted:
            yield row(setting, POLICY, f"{name}: calls of functions of a decision", [cost.calls / cost.counted])


def fits(found: Sequence[ScalingResult]) -> Iterator[Row]:
    """Lines through the sizes of Figure 6, and through all."""
    small = [each for each in found if each.peers <= FIGURE_6]
    for name, some in ((f"8 to {FIGURE_6} peers", small), ("all sizes", found)):
        if len(some) > 1:
            slope, share = line([each.peers for each in some], [each.throughput for each in some])
            yield row(name, POLICY, "Linear fit, microbatches/s a peer", [slope])
            yield row(name, POLICY, "Linear fit, R²", [share])


def line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Slope of the line through the points by least squares, and the share of the variance that it explains."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    across = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    spread_x, spread_y = sum((x - mean_x) ** 2 for x in xs), sum((y - mean_y) ** 2 for y in ys)
    return across / spread_x, across**2 / (spread_x * spread_y)
