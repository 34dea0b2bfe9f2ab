"""The setups of Table 9: what each computes in a second, and hours and dollars after that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.common.arguments import progress
from experiments.common.rows import Row, row
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.distributions import Constant
from swarmflow.simulator.scenario import Scenario, load

V100_FLOPS = 12.5e12
T4_FLOPS = V100_FLOPS * 65 / 125  # by the half-precision peaks of the data sheets
POLICIES = ("swarmflow", "swarm")
DATA_PARALLEL = "data parallel"
THROUGHPUT, HOURS, DOLLARS, SHARE = "Sequences/s", "Time, hours", "Cost in all, $", "Cost, of the reliable setup's"


@dataclass(frozen=True, slots=True)
class RentedSetup:
    """A row of the table. dollars_an_hour, hours: the paper's."""

    name: str
    peers: int
    flops: float
    dollars_an_hour: float
    hours: float

    @property
    def dollars(self) -> float:
        """In all, in the paper."""
        return self.dollars_an_hour * self.hours


RELIABLE = RentedSetup("8x V100, reliable", 8, V100_FLOPS, 7.834, 175.4)
SETUPS = (
    RentedSetup("8x V100, preemptible", 8, V100_FLOPS, 5.383, 192.6),
    RentedSetup("32x T4, preemptible", 32, T4_FLOPS, 3.536, 140.8),
)


def scenario(setup: RentedSetup, microbatches: int | None = None) -> Scenario:
    """The file with the machines of a setup. microbatches: of a step; None: as the file says."""
    read = load(Path(__file__).with_name("albert.toml"))
    peers = replace(read.peers[0], count=setup.peers, flops=Constant(setup.flops))
    model = read.model if microbatches is None else replace(read.model, microbatches=microbatches)
    return replace(read, peers=(peers,), model=model)


def sequences_of(scene: Scenario) -> int:
    """Return the sequences of a microbatch: their tensors are of 512 x 1,024 numbers of 16 bits."""
    return scene.model.activation_bytes // (512 * 1024 * 2)


def data_parallel(setup: RentedSetup) -> float:
    """Return sequences a second of devices that compute all the time: no network, and no time for sums and updates."""
    scene = scenario(setup)
    passes = 3 * scene.model.forward_flops * scene.model.stages / sequences_of(scene)
    return setup.peers * setup.flops / passes


def in_swarm(scene: Scenario, policy: str, seed: int) -> float:
    """Return the same of a simulated swarm, with its all-reduces. Raises SwarmflowError when it has no end."""
    report = Simulation(scene, seed, policy).run()
    if report.outcome != "finished":
        raise SwarmflowError(f"{scene.run.name}, policy {policy}, seed {seed}: {report.outcome}")
    return sequences_of(scene) * scene.model.microbatches / report.over(lambda iteration: iteration.seconds)[0]


def rows(seeds: range, microbatches: int | None = None, policies: tuple[str, ...] = POLICIES) -> Iterator[Row]:
    """Rows of the reliable setup, whose hours are the paper's, and of the others: as many sequences in other hours."""
    reliable = data_parallel(RELIABLE)
    yield from _rows(RELIABLE, DATA_PARALLEL, [reliable], reliable)
    work = [(setup, policy) for setup in SETUPS for policy in policies]
    for setup, policy in progress(work, len(work), "swarm_costs"):
        scene = scenario(setup, microbatches)
        yield from _rows(setup, policy, [in_swarm(scene, policy, seed) for seed in seeds], reliable)


def _rows(setup: RentedSetup, policy: str, found: list[float], reliable: float) -> Iterator[Row]:
    hours = [RELIABLE.hours * reliable / each for each in found]
    dollars = [setup.dollars_an_hour * each for each in hours]
    yield row(setup.name, policy, THROUGHPUT, found)
    yield row(setup.name, policy, HOURS, hours, setup.hours)
    yield row(setup.name, policy, DOLLARS, dollars, setup.dollars)
    shares = [each / RELIABLE.dollars for each in dollars]
    yield row(setup.name, policy, SHARE, shares, setup.dollars / RELIABLE.dollars)
