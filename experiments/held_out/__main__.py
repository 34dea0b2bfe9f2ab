"""`python -m experiments.held_out`: scenarios that are drawn by a seed. See the README beside this file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.rows import Row, row, write_json
from experiments.held_out.drawing import SCENARIOS, HeldOutScenario, draw
from experiments.held_out.figure import draw_figure
from experiments.held_out.policies import ALL, CHEAP, NEGOTIATING, OURS, PolicyResult, measure
from experiments.held_out.verdict import Results, best_of, counted, ratios, verdict

QUICK = (6, 13)  # small ones
SEEDS_BY_CHANCE = 2
SECONDS, RATIO = "Seconds an iteration", "of swarmflow's best"
COUNTED = "Seconds an iteration, lost gradients counted as learnt"
WIDTH = 180  # of the table where the output is no terminal


def seeds_of(drawn: HeldOutScenario, seed: int, quick: bool) -> range:
    """The seeds of its simulations: several where its churn is by chance."""
    return range(seed, seed + (SEEDS_BY_CHANCE if drawn.by_chance and not quick else 1))


def rows(name: str, results: Results) -> Iterator[Row]:
    """The figures of each policy that got to its end."""
    by = ratios(results)
    for policy, result in results.items():
        if result.seconds:
            yield row(name, policy, SECONDS, result.seconds)
            yield row(name, policy, COUNTED, result.counted_seconds)
            yield row(name, policy, RATIO, [by[policy]])


def table(found: Mapping[str, Results]) -> Table:
    """A line a scenario: seconds of the best router, and the time of each policy by it."""
    shown = Table(title="Time of an iteration, by that of swarmflow's best router", title_justify="left")
    shown.add_column("scenario", no_wrap=True)
    measured = [policy for policy in ALL if any(policy in results for results in found.values())]
    for head in ("best, s", *(policy.replace(" ", "\n") for policy in measured)):
        shown.add_column(head, justify="right")
    for name, results in found.items():
        by = ratios(results)
        cells = (f"{by[policy]:.3f}" if isfinite(by[policy]) else "-" for policy in measured)
        shown.add_row(name, f"{results[best_of(results, OURS)].mean_s:.4g}", *cells)
    return shown


def show(found: Mapping[str, Results]) -> None:
    """Print the table, why figures are missing, and the verdict."""
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=WIDTH)).print(table(found))
    for name, results in found.items():
        for policy, result in results.items():
            if result.reason:
                click.echo(f"{name}, {policy}: no figure: {result.reason}")
    for line in verdict(found.values()).lines():
        click.echo(line)
    click.echo("If gradients that died with a peer counted as learnt:")
    for line in verdict(counted(results) for results in found.values()).lines():
        click.echo(line)


@click.command("held_out")
@options
@click.option("--scenario", "numbers", multiple=True, type=click.IntRange(1, SCENARIOS), help="All, if none.")
@click.option("--full", is_flag=True, help=f"Also {', '.join(NEGOTIATING)}: an hour and more.")
def held_out(quick: bool, seed: int, json_file: Path | None, numbers: tuple[int, ...], full: bool) -> None:
    """Swarms that are drawn by a seed, under each router of swarmflow and each baseline."""
    drawn = draw(seed)
    chosen = [drawn[number - 1] for number in numbers or (QUICK if quick else range(1, SCENARIOS + 1))]
    work = [(each, policy) for each in chosen for policy in (ALL if full or quick else CHEAP)]
    found: dict[str, dict[str, PolicyResult]] = {each.name: {} for each in chosen}
    for each, policy in progress(work, len(work), "held_out"):
        found[each.name][policy] = measure(each, policy, seeds_of(each, seed, quick))
    show(found)
    if not full and not quick:
        click.echo(f"Not measured, so not ahead: {', '.join(NEGOTIATING)} (--full).")
    if json_file is not None:
        write_json(json_file, [each for name, results in found.items() for each in rows(name, results)])
    if not numbers:
        draw_figure(plot_file(__file__, quick), found)


if __name__ == "__main__":
    run(held_out)
