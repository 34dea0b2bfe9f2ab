"""The fleets of Tables 3 and 4, what a simulation gives for them, and what their all-reduce adds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.common.arguments import progress
from experiments.common.rows import Row, row
from swarmflow.core.protocol.piece_format import BY_CODEC
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.scenario import Scenario, load

SCALE = 8 / 3  # the paper's peers, by those of the file
STEP_SAMPLES = 16_384  # of an optimizer step (appendix G)
BLOCK = 16 * 4096**2  # parameters: attention 4 d^2, and GeGLU of 3 matrices of d x 4 d
EMBEDDING = 50_257 * 4096  # of GPT-2's tokens, tied with the head
LAYERS = 16  # of a stage
SHARED, DEFAULT = "layer sharing", "default Transformer"
PARAMETERS = {SHARED: BLOCK + EMBEDDING, DEFAULT: LAYERS * BLOCK + EMBEDDING}  # of the largest stage
LINK_BYTES_PER_S = 500e6 / 8
POLICIES = ("swarmflow", "gpipe")
PIPELINE = "pipeline alone"
THROUGHPUT, BEST, SHARE = "Throughput, samples/s", "Best-case, samples/s", "% of best-case"
BANDWIDTH = "Mb/s up and down at the middle stage"
STEP, STEP_HIDDEN = "Samples/s with the all-reduce", "Samples/s with the all-reduce beside the next step"
PAPER = {  # Table 3: actual, best case, upload and download of the middle stage; Table 4: actual
    (SHARED, "T4"): (17.6, 19.2, 317.8),
    (SHARED, "A100"): (16.9, 25.5, 436.1),
    (SHARED, "T4 & A100"): (27.3, None, None),
}
PAPER_STEP = {(DEFAULT, "T4"): 8.8, (DEFAULT, "A100"): 8.0, (DEFAULT, "T4 & A100"): 13.4}


@dataclass(frozen=True, slots=True)
class GpuFleet:
    """Peers of the file's groups. peers: of the whole fleet, as the paper has them."""

    name: str
    groups: tuple[int, ...]
    peers: int


FLEETS = (GpuFleet("T4", (0,), 400), GpuFleet("A100", (1,), 56), GpuFleet("T4 & A100", (0, 1), 456))


def scenario(fleet: GpuFleet, microbatches: int | None = None) -> Scenario:
    """The file with the fleet's peers. microbatches: of the step; None: as the file says."""
    read = load(Path(__file__).with_name("fleets.toml"))
    model = read.model if microbatches is None else replace(read.model, microbatches=microbatches)
    return replace(read, model=model, peers=tuple(read.peers[group] for group in fleet.groups))


def best(scene: Scenario) -> float:
    """Return samples a second if nothing but passes took time, of the whole fleet."""
    rate = 0.0
    for group in scene.peers:
        assert group.forward_s is not None
        assert group.backward_s is not None
        rate += group.count / (group.forward_s.at(0.5) + group.backward_s.at(0.5))
    return SCALE * rate / scene.model.stages


def throughput(scene: Scenario, policy: str, seed: int) -> float:
    """Return the same as simulated, of the step after one that does not count. Raises SwarmflowError: it has no end."""
    scene = replace(scene, run=replace(scene.run, warmup=1))
    report = Simulation(scene, seed, policy).run()
    if report.outcome != "finished":
        raise SwarmflowError(f"{scene.run.name}, policy {policy}, seed {seed}: {report.outcome}")
    return SCALE * scene.model.microbatches / report.over(lambda iteration: iteration.seconds)[0]


def middle_mbps(scene: Scenario, fleet: GpuFleet, samples_per_s: float) -> float:
    """Return the mean Mb/s, up as down, of a peer of the middle stage: an activation and a gradient a sample."""
    sample_bytes = 2 * scene.model.activation_bytes / scene.model.codec_ratio
    return samples_per_s * sample_bytes * 8 / 1e6 / (fleet.peers / scene.model.stages)


def reduce_s(architecture: str, fleet: GpuFleet, stages: int, codec: str) -> float:
    """Return the least seconds of the largest stage's all-reduce: 2 (n-1)/n of its gradients through each link."""
    members = fleet.peers / stages
    sent_bytes = 2 * (members - 1) / members * BY_CODEC[codec].usual_bytes(PARAMETERS[architecture])
    return sent_bytes / LINK_BYTES_PER_S


def rows(fleets: tuple[GpuFleet, ...], seeds: range, microbatches: int | None) -> Iterator[Row]:
    """All rows: the pipelines of the fleets, and then what the all-reduces make of them."""
    for fleet in progress(fleets, len(fleets), "swarm_fleets"):
        scene = scenario(fleet, microbatches)
        at_best = best(scene)
        for policy in POLICIES:
            found = [throughput(scene, policy, seed) for seed in seeds]
            yield from _pipeline_rows(fleet, scene, policy, found, at_best)
            if policy == POLICIES[0]:
                for architecture in (SHARED, DEFAULT):
                    yield from _step_rows(architecture, fleet, scene.model.stages, found)


def _pipeline_rows(fleet: GpuFleet, scene: Scenario, policy: str, found: list[float], at_best: float) -> Iterator[Row]:
    actual, theirs, mbps = PAPER[SHARED, fleet.name]
    setting = f"{fleet.name}, {PIPELINE}"
    yield row(setting, policy, THROUGHPUT, found, actual)
    yield row(setting, policy, BEST, [at_best], theirs)
    share = None if theirs is None else 100 * actual / theirs
    yield row(setting, policy, SHARE, [100 * each / at_best for each in found], share)
    if policy == POLICIES[0] and len(fleet.groups) == 1:
        yield row(setting, policy, BANDWIDTH, [middle_mbps(scene, fleet, each) for each in found], mbps)


def _step_rows(architecture: str, fleet: GpuFleet, stages: int, found: list[float]) -> Iterator[Row]:
    for codec in BY_CODEC:
        takes_s = reduce_s(architecture, fleet, stages, codec)
        policy = POLICIES[0] if codec == "none" else f"{POLICIES[0]}, {codec}"
        computed_s = [STEP_SAMPLES / each for each in found]
        setting = f"{fleet.name}, {architecture}"
        one_by_one = [STEP_SAMPLES / (each_s + takes_s) for each_s in computed_s]
        yield row(setting, policy, STEP, one_by_one, PAPER_STEP.get((architecture, fleet.name)))
        yield row(setting, policy, STEP_HIDDEN, [STEP_SAMPLES / max(each_s, takes_s) for each_s in computed_s])
