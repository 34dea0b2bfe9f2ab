"""`python -m experiments.gwtf_optimal`: GWTF's Table VI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import click

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.plot import bars
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from experiments.gwtf_churn.setting import links
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.report import SimulationReport
from swarmflow.simulator.scenario import Scenario, load

POLICIES = ("swarmflow", "swarm", "gpipe", "gwtf", "dtfm")
REPETITIONS, REPETITIONS_QUICK = 25, 2
SETTING = "Homogeneous 0%"
TIME, THROUGHPUT, SECONDS = "Time per microbatch", "Throughput per iteration", "Communication time"
PAPER = {("dtfm", TIME): 0.44, ("dtfm", THROUGHPUT): 9.0, ("gwtf", TIME): 0.51, ("gwtf", THROUGHPUT): 8.08}


def scenario(seed: int) -> Scenario:
    """One repetition: the links between the nodes are drawn from the seed."""
    base = load(Path(__file__).with_name("scenario.toml"))
    latency_s, mbps = links(base.trainers.count, base.peer_count, Random(seed))
    return replace(base, latency=latency_s, bandwidth=mbps)


def repetition(policy: str, seed: int) -> SimulationReport:
    """One simulation. Raises SwarmflowError when it does not come to its end, or breaks a promise."""
    report = Simulation(scenario(seed), seed, policy).run()
    if report.outcome != "finished":
        raise SwarmflowError(f"policy {policy}, seed {seed}: {'; '.join(report.violations) or report.outcome}")
    return report


def measure(policies: tuple[str, ...], seeds: range) -> Iterator[Row]:
    """All rows."""
    for policy in progress(policies, len(policies), "gwtf_optimal"):
        reports = [repetition(policy, seed) for seed in seeds]
        figures = {
            TIME: [report.over(lambda row: row.minutes_a_microbatch)[0] for report in reports],
            THROUGHPUT: [report.over(lambda row: float(row.microbatches))[0] for report in reports],
            SECONDS: [report.over(lambda row: row.communication_s)[0] for report in reports],
        }
        for metric, values in figures.items():
            yield row(SETTING, policy, metric, values, PAPER.get((policy, metric)))


@click.command("gwtf_optimal")
@options
@click.option("--repetitions", type=click.IntRange(1), help=f"Seeds. [default: {REPETITIONS}]")
@click.option("--policy", "policies", multiple=True, default=POLICIES, show_default=True, help="Several may be given.")
def gwtf_optimal(
    quick: bool, seed: int, json_file: Path | None, repetitions: int | None, policies: tuple[str, ...]
) -> None:
    """GWTF, Table VI: against pipelines arranged by who knows all ways between the nodes."""
    count = repetitions or (REPETITIONS_QUICK if quick else REPETITIONS)
    rows = list(measure(policies, range(seed, seed + count)))
    show("GWTF, Table VI (the paper's figures in brackets)", rows)
    if json_file is not None:
        write_json(json_file, rows)
    bars(plot_file(__file__, quick), "GWTF, Table VI", rows, [TIME, SECONDS])


if __name__ == "__main__":
    run(gwtf_optimal)
