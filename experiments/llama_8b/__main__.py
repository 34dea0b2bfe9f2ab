"""`python -m experiments.llama_8b`: see the README beside this file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean

import click

from experiments.common.arguments import options, progress, run
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from experiments.llama_8b.sizes import bound, scenario
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.scenario_hardware import ScenarioHardware

STAGES = (6, 8, 9, 10, 12, 16)
ITERATIONS = 3
LAST = 1  # with a delay no step is computed beside the last one, which is in no mean


@click.command("llama_8b")
@click.option("--stages", multiple=True, type=click.IntRange(2, 32), help=f"Of the model. [default: {STAGES}]")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each number.")
@click.option("--delay", type=click.IntRange(0, 1), default=0, show_default=True, help="Steps, of updates.")
@options
def llama_8b(stages: tuple[int, ...], seeds: int, delay: int, quick: bool, seed: int, json_file: Path | None) -> None:
    """What a step of Llama-3-8B takes on 32 machines behind 200 Mb/s, and what it takes at least."""
    chosen = stages or ((8,) if quick else STAGES)
    rows: list[Row] = []
    for count in progress(chosen, len(chosen), "llama_8b"):
        of = scenario(count, delay)
        least = bound(of, ScenarioHardware(of, seed, Random(seed)))
        iterations = (1 if quick else ITERATIONS) + LAST * delay
        # The sums of the first step, with a delay of the first two, take 32 bits.
        of = replace(of, run=replace(of.run, iterations=iterations, warmup=1 + delay))
        seconds, used = [], []
        for number in range(seed, seed + (1 if quick else seeds)):
            report = Simulation(of, number, "swarmflow").run()
            if report.outcome != "finished":
                raise SwarmflowError(f"{count} stages, seed {number}: {report.outcome}")
            measured = report.iterations[1 + delay : len(report.iterations) - LAST * delay]
            seconds.append(fmean(iteration.seconds for iteration in measured))
            used.append(fmean(iteration.utilisation for iteration in measured))
        name = f"{count} stages"
        rows.append(row(name, "least", "Seconds a step", [least.step_s]))
        rows.append(row(name, "swarmflow", "Seconds a step", seconds))
        rows.append(row(name, "swarmflow", "of the least", [each / least.step_s for each in seconds]))
        rows.append(row(name, "swarmflow", "Compute used", used))
    if json_file is not None:
        write_json(json_file, rows)
    show("Llama-3-8B, 32 machines behind 200 Mb/s", rows)


if __name__ == "__main__":
    run(llama_8b)
