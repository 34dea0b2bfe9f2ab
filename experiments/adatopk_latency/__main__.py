"""`python -m experiments.adatopk_latency`: see the README beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import click

from experiments.adatopk_latency.schedules import ACTIVATION_BYTES, OP_FENCE, SCHEDULES, ModuleSchedule
from experiments.adatopk_latency.testbed import SMALL, TESTBEDS, Testbed, TestbedLinks, links
from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.plot import bars
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from swarmflow.core.commit.adaptive_compression import byte_share, kept_numbers
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.distributions import Constant
from swarmflow.simulator.scenario import ADAPTIVE, FIXED, Scenario, load
from swarmflow.simulator.world import World

SEEDS = 3
SECONDS, BYTES, FASTER = "Seconds an iteration", "Bytes of all boundaries, of fp32's", "Faster than without compression"
FORMS = 3  # FusionLLM sends a number of 4 bytes with a place of 8: a ratio of 100 is 33.3 times fewer bytes
BACKWARD = 2.0  # times a forward pass


@dataclass(frozen=True, slots=True)
class Compression:
    """How boundary tensors are compressed. ratio: as the paper counts it, without the places; 0: not at all."""

    name: str
    ratio: float = 0.0
    adaptive: bool = False


COMPRESSIONS = (
    Compression("none"),
    Compression("top-k, 100", 100.0),
    Compression("AdaTopK, 100", 100.0, adaptive=True),
)
FURTHER = (  # Figure 11, of OP-Fence alone
    Compression("top-k, 1000", 1000.0),
    Compression("AdaTopK, 1000", 1000.0, adaptive=True),
)


def scenario(testbed: Testbed, of: TestbedLinks, schedule: ModuleSchedule, compression: Compression) -> Scenario:
    """Return a pipeline of one GPU a stage, with GPT2-XL cut as scheduled."""
    base = load(Path(__file__).with_name("scenario.toml"))
    mean_flops, stages = fmean(schedule.flops), len(schedule.flops)
    names = tuple(f"machine {number}" for number in range(len(testbed.machines)))
    peers = tuple(
        replace(
            base.peers[0], count=1, stage=stage, flops=Constant(testbed.flops[gpu]), region=(names[testbed.gpus[gpu]],)
        )
        for stage, gpu in enumerate(schedule.gpus)
    )
    run_part, ratio = replace(base.run, codec=FIXED, compression_ratio=None), 1.0
    if compression.adaptive:
        run_part = replace(run_part, codec=ADAPTIVE, compression_ratio=compression.ratio / FORMS)
    elif compression.ratio:
        ratio = 1 / byte_share(kept_numbers((1.0,), compression.ratio / FORMS)[0])
    model = replace(
        base.model,
        stages=stages,
        costs=schedule.flops,
        forward_flops=mean_flops,
        backward_flops=BACKWARD * mean_flops,
        activation_bytes=ACTIVATION_BYTES,
        codec_ratio=ratio,
    )
    return replace(
        base,
        run=run_part,
        model=model,
        trainers=replace(base.trainers, region=(names[0],)),
        network=replace(base.network, regions=names),
        peers=peers,
        latency=of.latency_s,
        bandwidth=of.mbps,
    )


def measured(of: Scenario, seed: int) -> tuple[float, float]:
    """Return the seconds of an iteration, and the bytes of its boundary tensors by those of fp32.

    Raises SwarmflowError where the simulation does not come to its end.
    """
    simulation = Simulation(of, seed, "swarmflow")
    report = simulation.run()
    if report.outcome != "finished":
        raise SwarmflowError(f"{of.run.name}, seed {seed}: {'; '.join(report.violations) or report.outcome}")
    assert isinstance(simulation.world, World), "of swarmflow's machines"
    kept = simulation.world.results[-1].kept
    share = fmean(map(byte_share, kept)) if kept else 1 / of.model.codec_ratio
    return report.over(lambda iteration: iteration.seconds)[0], share


def rows(testbeds: tuple[Testbed, ...], seeds: range, further: tuple[Compression, ...]) -> Iterator[Row]:
    """The rows of all schedules and compressions; a seed has the same links and the same order in all of them.

    further: compressions that are tried with OP-Fence alone.
    """
    work = [(testbed, name) for testbed in testbeds for name in SCHEDULES]
    for testbed, name in progress(work, len(work), "adatopk_latency"):
        plain: list[float] = []
        for compression in (*COMPRESSIONS, *(further if name == OP_FENCE else ())):
            found = []
            for seed in seeds:
                of = links(testbed, seed)
                found.append(measured(scenario(testbed, of, SCHEDULES[name](testbed, of, seed), compression), seed))
            seconds, shares = [each for each, _ in found], [share for _, share in found]
            plain = plain or seconds
            setting = f"{testbed.name}, {compression.name}"
            yield row(setting, name, SECONDS, seconds)
            if compression.ratio:
                yield row(setting, name, FASTER, [then / now for then, now in zip(plain, seconds, strict=True)])
                yield row(setting, name, BYTES, shares)


@click.command("adatopk_latency")
@options
def adatopk_latency(quick: bool, seed: int, json_file: Path | None) -> None:
    """FusionLLM, Figures 10 and 11: an iteration of GPT2-XL over two clusters, by schedule and compression."""
    testbeds = (SMALL,) if quick else TESTBEDS
    found = list(rows(testbeds, range(seed, seed + (1 if quick else SEEDS)), () if quick else FURTHER))
    show("FusionLLM, Figures 10 and 11", found)
    if json_file is not None:
        write_json(json_file, found)
    bars(plot_file(__file__, quick), "FusionLLM, Figures 10 and 11", found, [SECONDS])


if __name__ == "__main__":
    run(adatopk_latency)
