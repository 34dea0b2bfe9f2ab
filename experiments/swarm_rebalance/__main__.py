"""The command: SWARM's Table 5 and Figures 5 and 7."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.rows import write_json
from experiments.common.table import show
from experiments.swarm_rebalance.cases import RebalanceCase, courses, figure_7, rows, table_5
from experiments.swarm_rebalance.figure import draw

STAGES_SMALL = 8


@click.command("swarm_rebalance")
@options
def main(quick: bool, seed: int, json_file: Path | None) -> None:
    """Peers come and go for 32 hours: how well do they stay spread over the stages?"""
    cases = [*table_5(), *figure_7((8,) if quick else (4, 8, 16, 32))]
    found = {
        case: courses(case, _repetitions(case, quick), seed) for case in progress(cases, len(cases), "swarm_rebalance")
    }
    figures = [figure for case, some in found.items() for figure in rows(case, some)]
    show("SWARM, Table 5 and Figure 7 (in brackets: the paper)", figures)
    draw(plot_file(__file__, quick), found)
    if json_file is not None:
        write_json(json_file, figures)


def _repetitions(case: RebalanceCase, quick: bool) -> int:
    """Each of a large swarm takes as long as ten of a small one."""
    return 2 if quick else 3 if case.stages > STAGES_SMALL else 10


if __name__ == "__main__":
    run(main)
