"""`python -m experiments.swarm_costs`: SWARM's Table 9. See the README beside this file."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.common.arguments import options, run
from experiments.common.rows import write_json
from experiments.common.table import show
from experiments.swarm_costs.cases import POLICIES, rows

SEEDS = 3
QUICK_MICROBATCHES = 96


@click.command("swarm_costs")
@options
def swarm_costs(quick: bool, seed: int, json_file: Path | None) -> None:
    """SWARM, Table 9: hours and dollars of ALBERT-large on reliable and on preemptible machines."""
    seeds = range(seed, seed + (1 if quick else SEEDS))
    found = list(rows(seeds, QUICK_MICROBATCHES if quick else None, POLICIES[:1] if quick else POLICIES))
    show("SWARM, Table 9 (in brackets: the paper)", found)
    if json_file is not None:
        write_json(json_file, found)


if __name__ == "__main__":
    run(swarm_costs)
