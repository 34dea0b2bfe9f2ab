"""`python -m experiments.like_machines`: see the README beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import click

from experiments.common.arguments import options, progress, run
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.scenario import Scenario, load

PIPELINES = "gpipe"
POLICIES = (PIPELINES, "swarmflow", "swarm", "gwtf")
SEEDS = 16
QUICK_MICROBATCHES = 32
SECONDS, RATIO = "Seconds an iteration", "of gpipe's"


def scenario(quick: bool) -> Scenario:
    """The file's, in the reduced version with fewer microbatches and one iteration that counts."""
    of = load(Path(__file__).with_name("scenario.toml"))
    if not quick:
        return of
    model = replace(of.model, microbatches=QUICK_MICROBATCHES)
    return replace(of, model=model, run=replace(of.run, iterations=1))


def seconds(of: Scenario, policy: str, seed: int) -> float:
    """Seconds of an iteration, in the mean of those that count. Raises SwarmflowError where it does not end."""
    report = Simulation(of, seed, policy).run()
    if report.outcome != "finished":
        raise SwarmflowError(f"{of.run.name}, policy {policy}, seed {seed}: {report.outcome}")
    return report.over(lambda iteration: iteration.seconds)[0]


def measure(of: Scenario, policy: str, seeds: range) -> list[float]:
    """Seconds of each seed. A baseline has the better of with and without recomputing."""
    choices = (True,) if policy == "swarmflow" else (True, False)
    runs = [replace(of, run=replace(of.run, recompute=recompute)) for recompute in choices]
    return min(([seconds(each, policy, seed) for seed in seeds] for each in runs), key=fmean)


def rows(of: Scenario, seeds: range) -> Iterator[Row]:
    """The rows of all policies, the pipelines' first."""
    pipelines: list[float] = []
    for policy in progress(POLICIES, len(POLICIES), "like_machines"):
        found = measure(of, policy, seeds)
        pipelines = pipelines or found
        yield row(of.run.name, policy, SECONDS, found)
        yield row(of.run.name, policy, RATIO, [ours / theirs for ours, theirs in zip(found, pipelines, strict=True)])


@click.command("like_machines")
@options
def like_machines(quick: bool, seed: int, json_file: Path | None) -> None:
    """Sixteen like machines on fast links beside fixed pipelines of the same machines."""
    found = list(rows(scenario(quick), range(seed, seed + (1 if quick else SEEDS))))
    show("Like machines on fast links", found)
    if json_file is not None:
        write_json(json_file, found)


if __name__ == "__main__":
    run(like_machines)
