"""`python -m experiments.dtfm_cases`: DT-FM's Figure 3."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, run
from experiments.common.plot import bars
from experiments.common.rows import write_json
from experiments.common.table import show
from experiments.dtfm_cases.measure import FIRST, RUNTIME, SLOWDOWN, measure, parts


@click.command("dtfm_cases")
@options
@click.option(
    "--gradient-bytes", type=click.IntRange(1), default=2, show_default=True, help="Of a number in the all-reduce."
)
def dtfm_cases(quick: bool, seed: int, json_file: Path | None, gradient_bytes: int) -> None:
    """DT-FM, Figure 3: 64 GPUs in one data centre, in two, and in eight cities of the world."""
    rows = [row for part in parts(quick, gradient_bytes) for row in measure(part, seed)]
    show("DT-FM, Figure 3 (the paper's figures in brackets)", rows)
    if json_file is not None:
        write_json(json_file, rows)
    bars(plot_file(__file__, quick), "DT-FM, Figure 3", rows, [FIRST, RUNTIME, SLOWDOWN])


if __name__ == "__main__":
    run(dtfm_cases)
