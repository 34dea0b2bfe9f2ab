"""`python -m experiments.disturbed`: see the README beside this file."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from pathlib import Path
from statistics import fmean

import click

from experiments.common.arguments import options, progress, run
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from swarmflow.core.protocol.actions import Log, Record
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.scenario import Scenario, load
from swarmflow.simulator.world import World

EXAMPLES = Path(__file__).parents[2] / "examples"
UNDISTURBED, LEAVES, CHECKPOINTS = "undisturbed", "machines leave", "checkpoints"
FILES = {UNDISTURBED: "llama-8b.toml", LEAVES: "llama-8b-churn.toml", CHECKPOINTS: "llama-8b-checkpoints.toml"}
# Steps. Undisturbed, each takes as long as another; a kept version is to be safe before the next one is due.
STEPS = {UNDISTURBED: 3, LEAVES: 6, CHECKPOINTS: 20}
SAFE = re.compile(r"version (\d+) is on the disks of others too")
QUICK_MICROBATCHES, QUICK_SHARE = 16, 1 / 32  # of the parameters


@dataclass(frozen=True)
class TroubledRun:
    """What a run has taken."""

    step_s: float  # in the mean, after the first
    safe_after: (
        float | None
    )  # the longest time from a step's end until its version is safe, in steps; None: none is due
    ballots_again: int


def scenario(setting: str, quick: bool) -> Scenario:
    """The example of a setting, with as many steps as there is something to see in."""
    of = load(EXAMPLES / FILES[setting])
    if not quick:
        return replace(of, run=replace(of.run, iterations=STEPS[setting]))
    assert isinstance(of.model.parameters, tuple), "of each stage"
    parameters = tuple(round(QUICK_SHARE * each) for each in of.model.parameters)
    model = replace(of.model, microbatches=QUICK_MICROBATCHES, parameters=parameters)
    run = replace(of.run, iterations=3, checkpoint_every=min(of.run.checkpoint_every, 2))
    return replace(of, model=model, run=run)


def measure(of: Scenario, seed: int) -> TroubledRun:
    """Simulate it. Raises SwarmflowError where it does not end."""
    simulation = Simulation(of, seed, "swarmflow")
    world = simulation.world
    assert isinstance(world, World), "of the policy swarmflow"
    safe_s: dict[int, float] = {}  # by version: when it was whole on disks of peers of other stages

    def see(process: ProcessId, action: Log | Record) -> None:
        if isinstance(action, Log) and (found := SAFE.fullmatch(action.text)):
            safe_s.setdefault(int(found[1]), world.clock.now_s)

    world.observer = see
    report = simulation.run()
    if report.outcome != "finished":
        raise SwarmflowError(f"{of.run.name}, seed {seed}: {report.outcome}")
    ends_s = list(accumulate((iteration.seconds for iteration in report.iterations), initial=0.0))
    step_s = fmean(iteration.seconds for iteration in report.measured)
    every = of.run.checkpoint_every
    # The last one that is due may still be copied as the run ends.
    due = range(every, len(report.iterations) - every + 1, every) if every else ()
    waits = [(safe_s.get(version, inf) - ends_s[version]) / step_s for version in due]
    return TroubledRun(step_s, max(waits, default=None), report.counts.get("ballots_again", 0))


@click.command("disturbed")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each setting.")
@click.option("--setting", "settings", multiple=True, type=click.Choice(list(FILES)), help="The first two, if none.")
@click.option("--full", is_flag=True, help="All settings: 20 steps with checkpoints take a quarter of an hour more.")
@options
def disturbed(
    seeds: int, settings: tuple[str, ...], full: bool, quick: bool, seed: int, json_file: Path | None
) -> None:
    """What a step of Llama-3-8B takes while machines leave and return, and while checkpoints are made."""
    numbers = range(seed, seed + (1 if quick else seeds))
    usual = FILES if full or quick else (UNDISTURBED, LEAVES)
    runs = [(setting, number) for setting in settings or usual for number in numbers]
    found: dict[str, list[TroubledRun]] = {}
    for setting, number in progress(runs, len(runs), "disturbed"):
        found.setdefault(setting, []).append(measure(scenario(setting, quick), number))
    rows = [each for setting, measured in found.items() for each in _rows(setting, measured, found.get(UNDISTURBED))]
    if json_file is not None:
        write_json(json_file, rows)
    show("Llama-3-8B, 32 machines behind 200 Mb/s, 8 stages", rows)


def _rows(setting: str, measured: list[TroubledRun], undisturbed: list[TroubledRun] | None) -> list[Row]:
    rows = [row(setting, "swarmflow", "Seconds a step", [each.step_s for each in measured])]
    if undisturbed is not None and setting != UNDISTURBED:
        ratios = [each.step_s / beside.step_s for each, beside in zip(measured, undisturbed, strict=True)]
        rows.append(row(setting, "swarmflow", "of an undisturbed step", ratios))
    if safe := [each.safe_after for each in measured if each.safe_after is not None]:
        rows.append(row(setting, "swarmflow", "safe after, in steps", safe))
    rows.append(row(setting, "swarmflow", "ballots begun anew", [float(each.ballots_again) for each in measured]))
    return rows


if __name__ == "__main__":
    run(disturbed)
