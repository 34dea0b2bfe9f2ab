"""`python -m experiments.swarm_systems`: SWARM's Table 2. See the README beside this file."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.plot import bars
from experiments.common.rows import Row, write_json
from experiments.common.table import show
from experiments.swarm_systems.cases import (
    KEPT,
    LAYERS,
    MICROBATCHES,
    QUICK_MICROBATCHES,
    REDUCING,
    reduce_rows,
    throughput_rows,
)

SEEDS = 3
BITS = (16, 8)


def rows(quick: bool, seed: int) -> list[Row]:
    """The rows of the table; in the reduced version those of "xxlarge" with 16 bits."""
    layers, all_bits = (LAYERS[1:], BITS[:1]) if quick else (LAYERS, BITS)
    seeds = range(seed, seed + (1 if quick else SEEDS))
    microbatches = QUICK_MICROBATCHES if quick else MICROBATCHES
    work = [(layer, bits) for layer in layers for bits in all_bits]
    found: list[Row] = []
    for layer, bits in progress(work, len(work), "swarm_systems"):
        found += throughput_rows(layer, bits, seeds, microbatches)
    for layer in layers:
        found += reduce_rows(layer, seed, REDUCING[2:] if quick else REDUCING)
    return found


@click.command("swarm_systems")
@options
def swarm_systems(quick: bool, seed: int, json_file: Path | None) -> None:
    """SWARM, Table 2: swarms, fixed pipelines and offloading on like machines, with and without a jittery latency."""
    found = rows(quick, seed)
    show("SWARM, Table 2 (in brackets: the paper)", found)
    bars(plot_file(__file__, quick), "SWARM, Table 2", [each for each in found if each.metric == KEPT], [KEPT])
    if json_file is not None:
        write_json(json_file, found)


if __name__ == "__main__":
    run(swarm_systems)
