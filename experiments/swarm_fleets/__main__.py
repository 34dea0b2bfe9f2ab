"""`python -m experiments.swarm_fleets`: SWARM's Tables 3 and 4. See the README beside this file."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.common.arguments import options, run
from experiments.common.rows import write_json
from experiments.common.table import show
from experiments.swarm_fleets.cases import FLEETS, rows

SEEDS = 2
QUICK_MICROBATCHES = 126


@click.command("swarm_fleets")
@options
def swarm_fleets(quick: bool, seed: int, json_file: Path | None) -> None:
    """SWARM, Tables 3 and 4: T4 and A100 alone and in one swarm, with shared layers and without."""
    seeds = range(seed, seed + (1 if quick else SEEDS))
    found = list(rows(FLEETS[1:2] if quick else FLEETS, seeds, QUICK_MICROBATCHES if quick else None))
    show("SWARM, Tables 3 and 4 (in brackets: the paper)", found)
    if json_file is not None:
        write_json(json_file, found)


if __name__ == "__main__":
    run(swarm_fleets)
