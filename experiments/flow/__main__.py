"""`python -m experiments.flow`: see the README beside this file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.plot import bars
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from experiments.flow.asynchronous import negotiate_with_delays
from experiments.flow.effort import effort
from experiments.flow.instance import RELAXED, SETTINGS, TABLE_V, draw, read
from experiments.flow.optimum import optimum
from experiments.flow.policies import POLICIES, Outcome, negotiate
from swarmflow.errors import ConfigError
from swarmflow.files import write_whole

METRICS = ("cost over optimum", "worst", "flow over maximum", "messages")


@click.command("flow")
@click.option("--setting", "settings", multiple=True, type=click.Choice([*SETTINGS]), help="All of Table V, if none.")
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True, help="Instances of each setting.")
@click.option("--policy", "policies", multiple=True, type=click.Choice(POLICIES), help="All, if none is named.")
@click.option("--rounds", type=click.IntRange(1), help="Of every policy, instead of 60 or 120.")
@click.option("--delays", is_flag=True, help="World-wide delays, 5% of messages lost, 5% of nodes dying.")
@click.option("--effort", "measured", is_flag=True, help="CPU time of decisions, and bytes sent by nodes at rest.")
@click.option("--instance", "file", type=click.Path(path_type=Path), help="An instance from a JSON file instead.")
@options
def flow(
    settings: tuple[str, ...],
    seeds: int,
    policies: tuple[str, ...],
    rounds: int | None,
    delays: bool,
    measured: bool,
    file: Path | None,
    quick: bool,
    seed: int,
    json_file: Path | None,
) -> None:
    """GWTF's Table V: negotiated flows against the exact optimum."""
    if file is not None:
        of_instance(file, policies or POLICIES, seed, rounds, json_file)
        return
    numbers = range(seed, seed + (1 if quick else seeds))
    rows: list[Row] = []
    for setting in settings or tuple(TABLE_V)[: 1 if quick else None]:
        if measured:
            rows += efforts(setting, numbers)
        elif delays:
            rows += asynchronous(setting, numbers)
        else:
            rows += synchronous(setting, numbers, policies or POLICIES, rounds)
    if json_file is not None:
        write_json(json_file, rows)
    show("GWTF, Table V" + (", with delays, losses and deaths" if delays else ""), rows)
    if not delays and not measured and not settings and not policies:
        bars(plot_file(__file__, quick), "GWTF, Table V", rows, ("cost over optimum", "messages"))


def synchronous(setting: str, numbers: range, policies: tuple[str, ...], rounds: int | None) -> list[Row]:
    """Mean, worst and messages of each policy in one setting."""
    outcomes: dict[str, list[tuple[float, float, float]]] = {policy: [] for policy in policies}
    for number in progress(numbers, len(numbers), f"setting {setting}"):
        instance = draw(SETTINGS[setting], number)
        best = optimum(instance, relaxed=setting in RELAXED)
        for policy in policies:
            found = negotiate(instance, policy, number, rounds)
            share = len(found.paths) / instance.flow
            # What is not established is charged at the mean of what is.
            ratio = found.cost(instance) / best / share if share else float("inf")
            outcomes[policy].append((ratio, share, found.messages))
    rows = []
    for policy, values in outcomes.items():
        over = [value[0] for value in values]
        rows += [
            row(setting, policy, "cost over optimum", over),
            row(setting, policy, "worst", [max(over)]),
            row(setting, policy, "flow over maximum", [value[1] for value in values]),
            row(setting, policy, "messages", [value[2] for value in values]),
        ]
    return rows


def asynchronous(setting: str, numbers: range) -> list[Row]:
    """The same of swarmflow's machines, with delays, losses and deaths."""
    found = [negotiate_with_delays(setting, number) for number in progress(numbers, len(numbers), f"setting {setting}")]
    return [
        row(setting, "swarmflow", "cost over optimum", [each.over for each in found]),
        row(setting, "swarmflow", "worst", [max(each.over for each in found)]),
        row(setting, "swarmflow", "flow over maximum", [each.share for each in found]),
        row(setting, "swarmflow", "messages", [each.messages for each in found]),
        row(setting, "swarmflow", "torn links", [each.torn for each in found]),
        row(setting, "swarmflow", "over capacity", [each.violations for each in found]),
    ]


def efforts(setting: str, numbers: range) -> list[Row]:
    """What swarmflow's machines take."""
    found = [effort(setting, number) for number in progress(numbers, len(numbers), f"setting {setting}")]
    return [
        row(setting, "swarmflow", "longest decision (ms)", [1000 * each.longest_s for each in found]),
        row(setting, "swarmflow", "decisions", [each.decisions for each in found]),
        row(setting, "swarmflow", "decisions over 5 ms", [each.long for each in found]),
        row(setting, "swarmflow", "mean decision (ms)", [1000 * each.mean_s for each in found]),
        row(setting, "swarmflow", "at rest: % of a core a node", [100 * each.core for each in found]),
        row(setting, "swarmflow", "at rest: sent (bytes/s a node)", [each.sent_bytes_s for each in found]),
    ]


def of_instance(file: Path, policies: tuple[str, ...], seed: int, rounds: int | None, json_file: Path | None) -> None:
    """Every policy on an instance from outside; the list goes to the file, or to the output."""
    instance = read(file)
    found: list[dict[str, object]] = []
    for policy in policies:
        outcome: Outcome = negotiate(instance, policy, seed, rounds)
        found.append({"policy": policy, **asdict(outcome)})
    text = json.dumps(found, indent=1) + "\n"
    if json_file is None:
        click.echo(text, nl=False)
        return
    try:
        write_whole(json_file, text.encode())
    except OSError as error:
        raise ConfigError(f"cannot write {json_file}: {error.strerror}") from error


if __name__ == "__main__":
    run(flow)
