"""`python -m experiments.dtfm_zero`: see the README beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.plot import bars
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from experiments.dtfm_cases.cases import CASES, DtfmCase, Model, scenario
from experiments.dtfm_cases.measure import seconds
from experiments.dtfm_zero.costs import zero

ONCE, EACH = 16, 1  # sequences of a worker at a time: all that it has of a batch of 1024, and one
COMMUNICATION, BEST, WORST = (
    "Communication, s",
    "Iteration, all computed meanwhile, s",
    "Iteration, one after the other, s",
)
SIMULATED = "Iteration, simulated, s"


def rows(cases: tuple[DtfmCase, ...], model: Model, seed: int) -> Iterator[Row]:
    """ZeRO-S3 by arithmetic in each case, and beside it fixed pipelines with DT-FM's schedule, simulated."""
    for case in progress(cases, len(cases), "dtfm_zero"):
        for name, sequences in (("ZeRO-S3, gathered once", ONCE), ("ZeRO-S3, for each sequence", EACH)):
            found = zero(case, model, sequences)
            yield row(case.name, name, COMMUNICATION, [found.communication_s])
            yield row(case.name, name, BEST, [found.overlapped_s])
            yield row(case.name, name, WORST, [found.alternating_s])
        for policy in ("gpipe", "dtfm"):
            yield row(case.name, policy, SIMULATED, [seconds(scenario(case, model, policy, seed, 1), seed, policy)[0]])


@click.command("dtfm_zero")
@options
def dtfm_zero(quick: bool, seed: int, json_file: Path | None) -> None:
    """DT-FM, Figure 5: ZeRO-S3 in five cases, by arithmetic, beside pipelines, simulated."""
    cases = tuple(case.thinned(4) for case in (CASES[0], CASES[-1])) if quick else CASES
    found = list(rows(cases, Model(batch=64) if quick else Model(), seed))
    show("DT-FM, Figure 5: ZeRO-S3 by arithmetic, pipelines simulated", found)
    if json_file is not None:
        write_json(json_file, found)
    bars(plot_file(__file__, quick), "DT-FM, Figure 5", found, [BEST, WORST, SIMULATED])


if __name__ == "__main__":
    run(dtfm_zero)
