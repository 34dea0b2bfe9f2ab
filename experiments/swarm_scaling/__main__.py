"""The command: SWARM's Figure 6, and beyond."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.rows import Row, write_json
from experiments.common.table import show
from experiments.swarm_scaling import cases, large
from experiments.swarm_scaling.figure import draw


@click.command("swarm_scaling")
@click.option("--large", "is_large", is_flag=True, help="Instead: 1,000 to 10,000 peers of 32 stages. 15 minutes.")
@click.option("--full", is_flag=True, help="Also 1,000 peers, with SWARM's own step too: ten minutes more.")
@options
def main(quick: bool, seed: int, json_file: Path | None, full: bool, is_large: bool) -> None:
    """Does the throughput grow with the peers, and what does a peer more cost the others?"""
    if is_large:
        title, rows = "A large swarm", _large((64, 128) if quick else large.SIZES, seed)
    else:
        title, rows = "SWARM, Figure 6 (in brackets: the paper's Table 3)", _figure(quick, full, seed)
    show(title, rows)
    if json_file is not None:
        write_json(json_file, rows)


def _figure(quick: bool, full: bool, seed: int) -> list[Row]:
    sizes = (8, 32, 64) if quick else cases.SIZES + full * cases.FULL_SIZES
    found = [cases.measure(peers, seed) for peers in progress(sizes, len(sizes), "swarm_scaling")]
    draw(plot_file(__file__, quick), found)
    paper_sizes = () if quick else cases.PAPER_SIZES + full * cases.FULL_SIZES
    long = [cases.measure(peers, seed, cases.PAPER_HOPS) for peers in paper_sizes]
    return [row for each in [*found, *long] for row in cases.rows(each)] + list(cases.fits(found))


def _large(sizes: tuple[int, ...], seed: int) -> list[Row]:
    found = [large.measure(peers, seed) for peers in progress(sizes, len(sizes), "swarm_scaling")]
    return [row for each in found for row in large.rows(each)] + list(large.fits(found))


if __name__ == "__main__":
    run(main)
