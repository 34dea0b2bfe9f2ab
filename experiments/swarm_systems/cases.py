"""The systems of Table 2 as policies, and what each makes of the scenario files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.common.rows import Row, row
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.distributions import Constant, Uniform
from swarmflow.simulator.scenario import Scenario, load

FOLDER = Path(__file__).parent
LATENCY_S, JITTER_S = Constant(0.05), Uniform(0.0, 0.1)  # 100 ms, 50 more or less (the paper's tc netem)
NO_LATENCY, LATENCY = "no latency", "latency"
THROUGHPUT, KEPT = "Throughput, samples/s a worker", "Kept behind the latency"
REDUCE = "All-Reduce, s/round"
MICROBATCHES = (96, 224)  # of a short and of a long iteration, which fill, drain and end alike
QUICK_MICROBATCHES = (32, 96)
REDUCED_MICROBATCHES = 16
PCIE_BYTES_PER_S = 15.75e9  # of 16 lanes of the third generation, by the standard
SECONDS_OF_FIGURE_3 = {"xxlarge": 0.568 / 12, "GPT-3": 5.317 / 12}  # forward and backward of a layer, a sequence
OFFLOAD, OFFLOADED = "Offload", "Offload (bound)"


@dataclass(frozen=True, slots=True)
class LayerSize:
    """A layer of the table. samples: of a microbatch. parameters: of a layer (Table 6)."""

    name: str
    file: str
    samples: int
    parameters: int


@dataclass(frozen=True, slots=True)
class System:
    """A row of the table. held: microbatches in flight at a peer. reduce_codec: the form of its all-reduce."""

    name: str
    policy: str
    held: int
    paper: str  # the row that it stands beside
    reduce_codec: str = "none"


LAYERS = (LayerSize("GPT-3", "gpt-3.toml", 1, 1_811_939_328), LayerSize("xxlarge", "xxlarge.toml", 4, 201_326_592))
SYSTEMS = (
    System("swarmflow", "swarmflow", 16, "SWARM"),
    System("swarm", "swarm", 16, "SWARM"),
    System("gpipe, 16 in flight", "gpipe", 16, "GPipe"),
    System("1F1B: gpipe, 4 in flight", "gpipe", 4, "1F1B"),
)
REDUCING = (
    System("swarmflow", "swarmflow", 16, "SWARM"),
    System("swarmflow, blockwise16", "swarmflow", 16, "", "blockwise16"),
    System("swarm", "swarm", 16, "SWARM"),
    System("gpipe, 16 in flight", "gpipe", 16, "GPipe"),
    System(OFFLOAD, "gpipe", 16, OFFLOAD),
)
PAPER: dict[tuple[str, str], tuple[float, float, float, float]] = {  # throughput, and all-reduce, without and with
    ("GPT-3", "SWARM"): (0.619, 0.558, 441.7, 455.4),
    ("GPT-3", "GPipe"): (0.633, 0.477, 403.0, 469.6),
    ("GPT-3", "1F1B"): (0.638, 0.482, 403.0, 469.6),
    ("GPT-3", OFFLOAD): (0.382, 0.382, 1527.9, 1635.4),
    ("xxlarge", "SWARM"): (2.358, 2.161, 45.36, 51.269),
    ("xxlarge", "GPipe"): (2.541, 0.957, 44.17, 64.828),
    ("xxlarge", "1F1B"): (2.550, 0.987, 44.17, 64.828),
    ("xxlarge", OFFLOAD): (3.08, 3.08, 168.71, 252.26),
}


def scenario(layer: LayerSize, latency: bool, bits: int, held: int) -> Scenario:
    """The layer's file with so many bits a number of a boundary tensor, and so many microbatches at a peer."""
    read = load(FOLDER / layer.file)
    network = replace(read.network, latency_s=LATENCY_S, jitter_s=JITTER_S) if latency else read.network
    model = replace(read.model, codec_ratio=16 / bits)
    peers = replace(read.peers[0], capacity=Constant(held))
    return replace(read, network=network, model=model, peers=(peers,))


def seconds(scene: Scenario, policy: str, seed: int) -> float:
    """Seconds of the last iteration. Raises SwarmflowError when the simulation does not come to its end."""
    report = Simulation(scene, seed, policy).run()
    if report.outcome != "finished":
        raise SwarmflowError(f"{scene.run.name}, policy {policy}, seed {seed}: {report.outcome}")
    return report.iterations[-1].seconds


def throughput(
    scene: Scenario, layer: LayerSize, policy: str, seed: int, microbatches: tuple[int, int] = MICROBATCHES
) -> float:
    """Samples a second and worker, of the microbatches that a longer iteration has more than a shorter one.

    What fills and drains the pipelines and what ends an iteration is in both, and in neither of the paper's figures.
    """
    short_s, long_s = (
        seconds(replace(scene, model=replace(scene.model, microbatches=many)), policy, seed) for many in microbatches
    )
    return (microbatches[1] - microbatches[0]) * layer.samples / (long_s - short_s) / scene.peer_count


def reduce_s(scene: Scenario, layer: LayerSize, system: System, seed: int) -> float:
    """Seconds that an iteration takes longer with the layer's gradients, after one that does not count.

    Who offloads has no stages: each of the sixteen reduces all four layers.
    """
    stages = 1 if system.name == OFFLOAD else scene.model.stages
    parameters = layer.parameters * scene.model.stages // stages
    model = replace(scene.model, stages=stages, microbatches=REDUCED_MICROBATCHES, reduce_codec=system.reduce_codec)
    run = replace(scene.run, warmup=1)
    with_s, without_s = (
        seconds(replace(scene, model=replace(model, parameters=many), run=run), system.policy, seed)
        for many in (parameters, scene.model.parameters)
    )
    return with_s - without_s


def offload_bound(layer: LayerSize, layers: int) -> float:
    """Samples a second of a worker that computes the whole model, and no more than its device and its bus allow.

    The four layers of GPT-3 do not fit (4.2): their half-precision weights cross the bus for the forward pass of a
    microbatch, and for its backward pass, beside the computing.
    """
    computed_s = layers * layer.samples * SECONDS_OF_FIGURE_3[layer.name]
    crossing_s = 2 * layers * layer.parameters * 2 / PCIE_BYTES_PER_S if layer.name == "GPT-3" else 0.0
    return layer.samples / max(computed_s, crossing_s)


def throughput_rows(layer: LayerSize, bits: int, seeds: range, microbatches: tuple[int, int]) -> Iterator[Row]:
    """The throughput of all systems with and without latency, and what of it is left."""
    for system in SYSTEMS:
        papers = PAPER[layer.name, system.paper]
        found: list[list[float]] = []
        for column, latency in enumerate((False, True)):
            scene = scenario(layer, latency, bits, system.held)
            values = [throughput(scene, layer, system.policy, seed, microbatches) for seed in seeds]
            found.append(values)
            yield row(_setting(layer, bits, latency), system.name, THROUGHPUT, values, papers[column])
        kept = [behind / without for without, behind in zip(*found, strict=True)]
        yield row(_setting(layer, bits, True), system.name, KEPT, kept, papers[1] / papers[0])
    for latency in (False, True):
        bound = offload_bound(layer, 4)
        yield row(_setting(layer, bits, latency), OFFLOADED, THROUGHPUT, [bound], PAPER[layer.name, OFFLOAD][latency])


def reduce_rows(layer: LayerSize, seed: int, systems: tuple[System, ...]) -> Iterator[Row]:
    """The all-reduce of systems with and without latency, of one seed: the jitter moves seconds by milliseconds."""
    for system in systems:
        for latency in (False, True):
            values = [reduce_s(scenario(layer, latency, 16, system.held), layer, system, seed)]
            paper = PAPER[layer.name, system.paper][2 + latency] if system.paper else None
            yield row(f"{layer.name}, {LATENCY if latency else NO_LATENCY}", system.name, REDUCE, values, paper)


def _setting(layer: LayerSize, bits: int, latency: bool) -> str:
    return f"{layer.name}, {bits} bits, {LATENCY if latency else NO_LATENCY}"
