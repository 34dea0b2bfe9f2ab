"""The command: SWARM's Table 1 and Figures 1 and 3."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.rows import Row, write_json
from experiments.common.table import show
from experiments.swarm_utilisation import cases
from experiments.swarm_utilisation.figure import draw


@click.command("swarm_utilisation")
@options
def main(quick: bool, seed: int, json_file: Path | None) -> None:
    """How much of its time does a GPU compute behind 500 Mb/s, by the size of the layer and the latency?"""
    some = cases.table_1(quick)
    rows: list[Row] = []
    for case in progress(some, len(some), "swarm_utilisation"):
        scene = cases.scenario(case, quick)
        rows += cases.rows(case, scene, cases.run(scene, seed))
    rows += cases.square_cube(seed)
    show("SWARM, Table 1 and Figures 1 and 3 (in brackets: the paper)", rows)
    draw(plot_file(__file__, quick), rows)
    if json_file is not None:
        write_json(json_file, rows)


if __name__ == "__main__":
    run(main)
