"""`python -m experiments.swarm_convergence`: SWARM's Figure 4 in small. See the README beside this file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import click
import torch
from torch import Tensor

from experiments.boundaries.__main__ import corpus
from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from experiments.swarm_convergence.figure import draw
from experiments.swarm_convergence.training import STEPS, Manner, in_stages, one_process

SEEDS, QUICK_STEPS = 3, 6
LAST = 20  # steps whose losses are averaged
ONE = "one process"
LOSS, RATIO, APART = "Loss", "Loss, of one process'", "Largest difference of a step's loss"
SETTINGS: Mapping[str, int | None] = {"default Transformer": None, "layer sharing": 3}
MANNERS: Mapping[str, Manner] = {
    "3 stages": Manner(),
    "3 stages, 8 bits": Manner("blockwise8"),
    "3 stages, 8 bits, state of 8 bits": Manner("blockwise8", state_bits=8),
    "3 stages, 8 bits, delayed": Manner("blockwise8", delay=1),
}
QUICK = {name: MANNERS[name] for name in ("3 stages, 8 bits", "3 stages, 8 bits, delayed")}
Curves = dict[tuple[str, str], list[list[float]]]  # the losses of all steps, of each seed, by setting and policy


def curves(tokens: Tensor, seeds: range, steps: int, settings: Sequence[str], manners: Mapping[str, Manner]) -> Curves:
    """Train everything. tokens: as for `one_process`."""
    found: Curves = {}
    work = [(setting, policy) for setting in settings for policy in (ONE, *manners)]
    for setting, policy in progress(work, len(work), "swarm_convergence"):
        shared = SETTINGS[setting]
        found[setting, policy] = [
            one_process(tokens, shared, seed, steps)
            if policy == ONE
            else in_stages(tokens, shared, manners[policy], seed, steps)
            for seed in seeds
        ]
    return found


def rows(found: Curves) -> Iterator[Row]:
    """The losses at the end, and how far apart a curve is from that of one process."""
    for (setting, policy), seeds in found.items():
        ends = [fmean(losses[-LAST:]) for losses in seeds]
        yield row(setting, policy, LOSS, ends)
        if policy == ONE:
            continue
        one = found[setting, ONE]
        yield row(setting, policy, RATIO, [end / fmean(of[-LAST:]) for end, of in zip(ends, one, strict=True)])
        apart = [
            max(abs(a - b) for a, b in zip(losses, of, strict=True)) for losses, of in zip(seeds, one, strict=True)
        ]
        yield row(setting, policy, APART, apart)


@click.command("swarm_convergence")
@options
@click.option("--text", type=click.Path(dir_okay=False, path_type=Path), help="To learn; not given: source code.")
def swarm_convergence(quick: bool, seed: int, json_file: Path | None, text: Path | None) -> None:
    """What stages learn beside one process: with and without shared blocks, 8 bits, late updates."""
    torch.set_num_threads(1)
    seeds, steps = range(seed, seed + (1 if quick else SEEDS)), QUICK_STEPS if quick else STEPS
    settings, manners = (("layer sharing",), QUICK) if quick else (tuple(SETTINGS), MANNERS)
    found = curves(corpus(text), seeds, steps, settings, manners)
    shown = list(rows(found))
    show(f"SWARM, Figure 4 in small: loss, mean of the last {min(LAST, steps)} of {steps} steps", shown)
    draw(plot_file(__file__, quick), found)
    if json_file is not None:
        write_json(json_file, shown)


if __name__ == "__main__":
    run(swarm_convergence)
