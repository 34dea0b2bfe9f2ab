"""`python -m experiments.joining`: see the README beside this file."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.plot import bars
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from experiments.joining.drawing import CANDIDATES, SETTINGS, draw
from experiments.joining.placing import POLICIES, improvement

QUICK_CANDIDATES = 4
METRICS = ("improvement", "of the greedy optimum")


@click.command("joining")
@click.option("--setting", "settings", multiple=True, type=click.Choice([*SETTINGS]), help="Of Table IV; all, if none.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each setting.")
@options
def joining(settings: tuple[str, ...], seeds: int, quick: bool, seed: int, json_file: Path | None) -> None:
    """GWTF's Table IV and Figure 5: twenty nodes join, and each rule chooses their stages."""
    numbers = range(seed, seed + (1 if quick else seeds))
    rows: list[Row] = []
    for setting in settings or tuple(SETTINGS)[: 1 if quick else None]:
        found: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        for number in progress(numbers, len(numbers), f"setting {setting}"):
            swarm = draw(SETTINGS[setting], number, QUICK_CANDIDATES if quick else CANDIDATES)
            for policy in POLICIES:
                found[policy].append(improvement(swarm, policy, number))
        best = found["greedy optimum"]
        for policy, values in found.items():
            rows.append(row(setting, policy, "improvement", values))
            shares = [value / most for value, most in zip(values, best, strict=True)]
            rows.append(row(setting, policy, "of the greedy optimum", shares))
    if json_file is not None:
        write_json(json_file, rows)
    show("GWTF, Figure 5", rows)
    if not settings:
        bars(plot_file(__file__, quick), "GWTF, Figure 5", rows, METRICS)


if __name__ == "__main__":
    run(joining)
