"""`python -m experiments.gwtf_churn`: GWTF's Tables II and III."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.plot import bars
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from experiments.gwtf_churn.pairs import Estimate, ratio, show_estimates
from experiments.gwtf_churn.paper import COMMUNICATION, LOST, THROUGHPUT, TIME, WASTED, reported
from experiments.gwtf_churn.setting import ChurnSetting, scenario, settings
from swarmflow.core.routing.routers import ROUTERS
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.report import SimulationReport

POLICIES = ("swarmflow", "swarm", "swarm-restart", "gwtf")
REPETITIONS, REPETITIONS_QUICK = 8, 1
WASTED_SHARE = "Wasted GPU time (share)"
LOST_SHARE = "Lost with the dead (share)"

METRICS: dict[str, Callable[[SimulationReport], float]] = {
    TIME: lambda report: report.over(lambda row: row.minutes_a_microbatch)[0],
    THROUGHPUT: lambda report: report.over(lambda row: float(row.microbatches))[0],
    COMMUNICATION: lambda report: report.over(lambda row: row.communication_s)[0],
    WASTED: lambda report: report.over(lambda row: row.wasted_s / 60)[0],
    WASTED_SHARE: lambda report: report.waste()[0],
    LOST: lambda report: report.over(lambda row: row.lost_s / 60)[0],
    LOST_SHARE: lambda report: report.waste()[1],
}


def repetition(setting: ChurnSetting, policy: str, seed: int, router: str = "shortest") -> SimulationReport:
    """One simulation. Raises SwarmflowError when it does not come to its end, or breaks a promise."""
    report = Simulation(scenario(setting, seed, router), seed, policy).run()
    if report.outcome != "finished":
        why = "; ".join(report.violations) or report.outcome
        raise SwarmflowError(f"{setting.name}, policy {policy}, seed {seed}: {why}")
    return report


Minutes = dict[tuple[str, str], list[float]]  # a microbatch, of each seed, by setting and policy


def measure(
    policies: tuple[str, ...], seeds: range, quick: bool, router: str = "shortest", minutes: Minutes | None = None
) -> Iterator[Row]:
    """All rows, setting by setting. minutes: filled with the figures of the single seeds."""
    chosen = [setting for setting in settings() if not quick or setting.model == "LLaMA-like"]
    work = [(setting, policy) for setting in chosen for policy in policies]
    for setting, policy in progress(work, len(work), "gwtf_churn"):
        reports = [repetition(setting, policy, seed, router) for seed in seeds]
        if minutes is not None:
            minutes[setting.name, policy] = [METRICS[TIME](report) for report in reports]
        for metric, value in METRICS.items():
            paper = reported(policy, setting.model, metric, setting.column)
            yield row(setting.name, policy, metric, [value(report) for report in reports], paper)


def _ratios(minutes: Minutes, policies: tuple[str, ...]) -> list[tuple[str, list[Estimate]]]:
    """Swarmflow's time by each baseline's, a row a setting."""
    names = dict.fromkeys(setting for setting, _ in minutes)
    return [(name, [ratio(minutes[name, "swarmflow"], minutes[name, policy]) for policy in policies]) for name in names]


@click.command("gwtf_churn")
@options
@click.option("--repetitions", type=click.IntRange(1), help=f"Seeds of each setting. [default: {REPETITIONS}]")
@click.option("--router", type=click.Choice(ROUTERS), default="shortest", show_default=True, help="Of swarmflow.")
@click.option("--policy", "policies", multiple=True, default=POLICIES, show_default=True, help="Several may be given.")
def gwtf_churn(
    quick: bool, seed: int, json_file: Path | None, repetitions: int | None, router: str, policies: tuple[str, ...]
) -> None:
    """GWTF, Tables II and III: 18 nodes that leave and come back with a chance an iteration."""
    seeds = range(seed, seed + (repetitions or (REPETITIONS_QUICK if quick else REPETITIONS)))
    minutes: Minutes = {}
    rows = list(measure(policies, seeds, quick, router, minutes))
    show("GWTF, Tables II and III (the paper's figures in brackets)", rows)
    others = tuple(policy for policy in policies if policy != "swarmflow")
    if "swarmflow" in policies and others:
        title = f"swarmflow's time by that of a baseline, {len(seeds)} paired seeds, with 95% intervals"
        show_estimates(title, ["", *others], _ratios(minutes, others))
    if json_file is not None:
        write_json(json_file, rows)
    if router != "shortest":
        return  # the plot is of the default
    bars(plot_file(__file__, quick), "GWTF, Tables II and III", rows, [TIME, COMMUNICATION, WASTED_SHARE, LOST_SHARE])


if __name__ == "__main__":
    run(gwtf_churn)
