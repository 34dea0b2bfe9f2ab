"""`python -m experiments.gwtf_churn.steps`: what each of swarmflow's means gives, and the same of baselines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import click

from experiments.common.arguments import options, progress, run
from experiments.common.rows import Row, row, write_json
from experiments.gwtf_churn.pairs import Estimate, mean, ratio, show_estimates
from experiments.gwtf_churn.paper import TIME
from experiments.gwtf_churn.setting import ChurnSetting, scenario, settings
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.report import MINUTE_S, SimulationReport

SEEDS, SEEDS_QUICK = 12, 2
MODEL = "LLaMA-like"
LEARNT = "Time per learnt microbatch (min)"
COLUMNS = tuple(setting.column for setting in settings() if setting.model == MODEL)
CLAIMED = ("Homogeneous 0%", "Heterogeneous 10%")


class ChurnTimes(NamedTuple):
    """Minutes a microbatch, of one repetition."""

    minutes: float  # whatever became of its gradients
    learnt: float  # by the share of the gradients that were learnt: what a dead peer had added is lost in the baselines


@dataclass(frozen=True, slots=True)
class ChurnStep:
    """A policy with some of the means."""

    name: str
    policy: str
    router: str = "shortest"
    relays: bool = True  # and shared all-reduces
    recompute: bool = True

    def report(self, setting: ChurnSetting, seed: int) -> SimulationReport:
        """Simulate one repetition. Raises SwarmflowError where it does not end."""
        base = scenario(setting, seed, self.router)
        run = replace(base.run, relays=self.relays, recompute=self.recompute)
        report = Simulation(replace(base, run=run), seed, self.policy).run()
        if report.outcome != "finished":
            why = "; ".join(report.violations) or report.outcome
            raise SwarmflowError(f"{setting.name}, {self.name}, seed {seed}: {why}")
        return report

    def times(self, setting: ChurnSetting, seed: int) -> ChurnTimes:
        """Simulate one repetition."""
        report = self.report(setting, seed)
        learnt = report.over(lambda row: row.learnt_seconds / MINUTE_S / row.microbatches)[0]
        return ChurnTimes(report.over(lambda row: row.minutes_a_microbatch)[0], learnt)


BASELINES = ("swarm", "swarm-restart", "gwtf")
STEPS = (
    ChurnStep("swarmflow, no extras", "swarmflow", "iwrr", relays=False, recompute=False),
    ChurnStep("+ shortest", "swarmflow", relays=False, recompute=False),
    ChurnStep("+ relays and shared all-reduce", "swarmflow", recompute=False),
    ChurnStep("+ recompute", "swarmflow"),
    *(ChurnStep(f"{name}, no recompute", name, recompute=False) for name in BASELINES),
    *(ChurnStep(name, name) for name in BASELINES),
)
OURS = STEPS[3]


@click.command("gwtf_churn.steps")
@options
@click.option("--seeds", type=click.IntRange(1), help=f"Of each setting, the same for all. [default: {SEEDS}]")
@click.option("--setting", "columns", type=click.Choice(COLUMNS), multiple=True, default=CLAIMED, show_default=True)
def steps(quick: bool, seed: int, json_file: Path | None, seeds: int | None, columns: tuple[str, ...]) -> None:
    """What each of swarmflow's means gives in GWTF's Table II, on paired seeds."""
    tried = range(seed, seed + (seeds or (SEEDS_QUICK if quick else SEEDS)))
    chosen = [setting for setting in settings() if setting.model == MODEL and setting.column in columns]
    work = [(setting, step) for setting in chosen for step in STEPS]
    found = {
        (setting.column, step.name): [step.times(setting, each) for each in tried]
        for setting, step in progress(work, len(work), "gwtf_churn.steps")
    }
    minutes = {key: [each.minutes for each in times] for key, times in found.items()}
    learnt = {key: [each.learnt for each in times] for key, times in found.items()}
    names = [setting.column for setting in chosen]
    title = f"{MODEL}, {len(tried)} paired seeds, with 95% intervals"
    means = [(step.name, [mean(minutes[name, step.name]) for name in names]) for step in STEPS]
    show_estimates(f"Minutes a microbatch: {title}", ["", *names], means)
    show_estimates(f"Ratio of the means: {title}", ["", *names], _ratios(minutes, names))
    show_estimates(f"The same by what is learnt of the gradients: {title}", ["", *names], _ratios(learnt, names))
    if json_file is not None:
        rows: list[Row] = [row(name, step, TIME, values) for (name, step), values in minutes.items()]
        rows += [row(name, step, LEARNT, values) for (name, step), values in learnt.items()]
        write_json(json_file, rows)


def _ratios(of: dict[tuple[str, str], list[float]], names: list[str]) -> list[tuple[str, list[Estimate]]]:
    """Return swarmflow's time by that of each step, in the settings of these names."""
    others = [step.name for step in STEPS if step is not OURS]
    return [(f"swarmflow / {each}", [ratio(of[name, OURS.name], of[name, each]) for name in names]) for each in others]


if __name__ == "__main__":
    run(steps)
