"""The command: SWARM's Figure 6, and beyond."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.rows import write_json
from experiments.common.table import show
from experiments.swarm_scaling import cases
from experiments.swarm_scaling.figure import draw


@click.command("swarm_scaling")
@click.option("--large", is_flag=True, help="Also 4,000 peers: minutes more.")
@options
def main(quick: bool, seed: int, json_file: Path | None, large: bool) -> None:
    """Does the throughput grow with the peers, and what does a peer more cost the others?"""
    sizes = (8, 32, 64) if quick else (*cases.SIZES, *cases.LARGE) if large else cases.SIZES
    found = [cases.measure(peers, seed) for peers in progress(sizes, len(sizes), "swarm_scaling")]
    rows = [row for each in found for row in cases.rows(each)] + list(cases.fits(found))
    show("SWARM, Figure 6 (in brackets: the paper's Table 3)", rows)
    draw(plot_file(__file__, quick), found)
    if json_file is not None:
        write_json(json_file, rows)


if __name__ == "__main__":
    run(main)
