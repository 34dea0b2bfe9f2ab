"""`python -m experiments.dtfm_cases`: DT-FM's Figure 3."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, run
from experiments.common.plot import bars
from experiments.common.rows import write_json
from experiments.common.table import show
from experiments.dtfm_cases.cases import CASES
from experiments.dtfm_cases.measure import FIRST, REPETITIONS, RUNTIME, SLOWDOWN, measure, parts, reduced, rows
from experiments.dtfm_cases.plans import SEEDS, plan_rows


@click.command("dtfm_cases")
@options
@click.option("--repetitions", type=click.IntRange(1), default=REPETITIONS, show_default=True, help="Seeds.")
@click.option("--gradient-bytes", type=click.IntRange(1), default=2, show_default=True, help="Of a number of these.")
@click.option("--large", is_flag=True, help="Also the largest model: minutes more.")
def dtfm_cases(
    quick: bool, seed: int, json_file: Path | None, repetitions: int, gradient_bytes: int, large: bool
) -> None:
    """DT-FM, Figure 3: 64 GPUs in one data centre, in two, and in eight cities of the world."""
    chosen = (reduced(gradient_bytes),) if quick else parts(repetitions, gradient_bytes, large)
    found = [row for part in chosen for row in rows(part, measure(part, seed))]
    show("DT-FM, Figure 3 (the paper's figures in brackets)", found)
    planned_cases = (CASES[-1].thinned(4),) if quick else CASES
    plans = list(plan_rows(planned_cases, seed, 1 if quick else SEEDS, gradient_bytes))
    show("DT-FM's cost model: what the planners find, beside what no plan can be below", plans)
    if json_file is not None:
        write_json(json_file, [*found, *plans])
    bars(plot_file(__file__, quick), "DT-FM, Figure 3", found, [FIRST, RUNTIME, SLOWDOWN])


if __name__ == "__main__":
    run(dtfm_cases)
