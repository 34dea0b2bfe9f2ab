"""`python -m experiments.dtfm_cases`: DT-FM's Figure 3."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, run
from experiments.common.plot import bars
from experiments.common.rows import write_json
from experiments.common.table import show
from experiments.dtfm_cases.cases import BATCH, CASES, LAYERS, Model
from experiments.dtfm_cases.measure import FIRST, REPETITIONS, RUNTIME, SLOWDOWN, measure, reduced, rows, whole
from experiments.dtfm_cases.plans import SEEDS, plan_rows


@click.command("dtfm_cases")
@options
@click.option("--repetitions", type=click.IntRange(1), default=REPETITIONS, show_default=True, help="Seeds.")
@click.option("--gradient-bytes", type=click.IntRange(1), default=2, show_default=True, help="Of a number of these.")
@click.option("--layers", type=click.Choice((24, 32, 40)), default=LAYERS, show_default=True, help="Of the model.")
@click.option("--batch", type=click.Choice((1024, 2048, 4096)), default=BATCH, show_default=True, help="Sequences.")
def dtfm_cases(
    quick: bool, seed: int, json_file: Path | None, repetitions: int, gradient_bytes: int, layers: int, batch: int
) -> None:
    """DT-FM, Figures 3 and 6: 64 GPUs in one data centre, in two, and in eight cities of the world."""
    part = reduced(gradient_bytes) if quick else whole(Model(layers, batch, gradient_bytes), repetitions)
    found = list(rows(part, measure(part, seed)))
    show("DT-FM, Figures 3 and 6 (the paper's figures in brackets)", found)
    if (layers, batch) != (LAYERS, BATCH):  # the plans and the plot are of the smallest model
        if json_file is not None:
            write_json(json_file, found)
        return
    planned_cases = (CASES[-1].thinned(4),) if quick else CASES
    plans = list(plan_rows(planned_cases, seed, 1 if quick else SEEDS, gradient_bytes))
    show("DT-FM's cost model: what the planners find, beside what no plan can be below", plans)
    if json_file is not None:
        write_json(json_file, [*found, *plans])
    bars(plot_file(__file__, quick), "DT-FM, Figure 3", found, [FIRST, RUNTIME, SLOWDOWN])


if __name__ == "__main__":
    run(dtfm_cases)
