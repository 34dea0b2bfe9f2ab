"""`python -m experiments.asked_twice`: see the README beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from experiments.asked_twice.cases import cases, quick_cases
from experiments.common.arguments import options, progress, run
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from swarmflow.errors import SwarmflowError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.scenario import Scenario

POLICY = "swarmflow"
HOPS, TWICE, IN_VAIN = "Hops", "Asked for twice", "Tensors sent in vain"
# Why a microbatch goes to another peer before the first one has it: a question is answered with no, or is taken back.
QUESTIONS = frozenset({"retries:asked", "retries:later"})
DENIED = frozenset({"retries:full", "retries:draining", "retries:stage"})  # its tensor was sent without a question


def rows(name: str, of: Scenario, seed: int) -> Iterator[Row]:
    """Yield what was asked for twice in a scenario. Raises SwarmflowError where it does not end, or somebody died."""
    report = Simulation(of, seed, POLICY).run()
    deaths = sum(iteration.deaths for iteration in report.iterations)
    if report.outcome != "finished" or deaths:
        raise SwarmflowError(f"{name}, seed {seed}: {report.outcome}, {deaths} deaths")
    again = {reason: count for reason, count in report.counts.items() if reason.startswith("retries:")}
    in_vain = sum(count for reason, count in again.items() if reason in DENIED)
    twice = sum(count for reason, count in again.items() if reason not in QUESTIONS | DENIED)
    hops = len(report.iterations) * of.model.microbatches * of.model.stages
    for metric, count in ((HOPS, hops), (TWICE, twice), (IN_VAIN, in_vain)):
        yield row(name, POLICY, metric, [float(count)])


@click.command("asked_twice")
@options
@click.option("--full", is_flag=True, help="Also those that take longest: six minutes more.")
def asked_twice(quick: bool, seed: int, json_file: Path | None, full: bool) -> None:
    """Whether any hop is asked for twice where nobody dies."""
    chosen = list(quick_cases(seed) if quick else cases(seed, full))
    simulated = progress(chosen, len(chosen), "asked_twice")
    found = [each for name, of in simulated for each in rows(name, of, seed)]
    show("Hops asked for twice where nobody dies", found)
    twice = sum(each.mean for each in found if each.metric == TWICE)
    click.echo(
        f"{twice:.0f} of {sum(each.mean for each in found if each.metric == HOPS):.0f} hops were asked for twice."
    )
    if json_file is not None:
        write_json(json_file, found)


if __name__ == "__main__":
    run(asked_twice)
