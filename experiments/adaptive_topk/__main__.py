"""`python -m experiments.adaptive_topk`: see the README beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import click
import torch
from torch import Tensor

from experiments.boundaries.__main__ import LAST, LOSS, QUICK_STEPS, RATIO, WHOLE, corpus
from experiments.boundaries.training import SEQ_LEN, SEQUENCES, STEPS, Crossing, train
from experiments.common.arguments import options, progress, run
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from swarmflow.compute.topk import codec_of
from swarmflow.core.commit.adaptive_compression import kept_numbers

SEEDS = 3
COMPRESSION = 50.0
CUT = (1, 2, 3)
RATES = (20e6, 4e6, 100e6)  # bits/s: a region's edge in the middle, and a cluster behind it
HIDDEN = (128, 256)
SLOWEST_BYTES, ALL_BYTES = "Bytes, of fp32's, slowest boundary", "Bytes, of fp32's, all boundaries"
ADAPTIVE = "top-k, by the links"
Case = tuple[str, Crossing]
CASES: tuple[Case, ...] = (
    (ADAPTIVE, Crossing(codec="adatopk", kept=kept_numbers(RATES, COMPRESSION))),
    ("top-k, all alike", Crossing(codec="adatopk", kept=kept_numbers((1.0,) * len(CUT), COMPRESSION))),
)


def rows(tokens: Tensor, seeds: range, steps: int, widths: tuple[int, ...]) -> Iterator[Row]:
    """The rows of all cases. tokens: as for `train`."""
    work = [(hidden, case) for hidden in widths for case in ((WHOLE, Crossing()), *CASES)]
    whole: list[float] = []
    for hidden, (name, crossing) in progress(work, len(work), "adaptive_topk"):
        found = [fmean(train(tokens, CUT, crossing, seed, steps, hidden)[-LAST:]) for seed in seeds]
        setting = f"H = {hidden}"
        yield row(setting, name, LOSS, found)
        if name == WHOLE:
            whole = found
            continue
        yield row(setting, name, RATIO, [ours / plain for ours, plain in zip(found, whole, strict=True)])
        yield row(setting, name, SLOWEST_BYTES, [_share(crossing, RATES.index(min(RATES)), hidden)])
        shares = [_share(crossing, number, hidden) for number in range(len(CUT))]
        yield row(setting, name, ALL_BYTES, [fmean(shares)])


def _share(crossing: Crossing, number: int, hidden: int) -> float:
    """The bytes of a tensor at a boundary, of those in fp32."""
    shape = (SEQUENCES, SEQ_LEN, hidden)
    codec = codec_of(crossing.codec, crossing.kept[number] if crossing.kept else 256)
    plain = codec_of("none", 256).wire_bytes(shape, torch.float32)
    return codec.wire_bytes(shape, torch.float32) / plain


@click.command("adaptive_topk")
@options
@click.option("--text", type=click.Path(dir_okay=False, path_type=Path), help="To learn; not given: source code.")
@click.option("--hidden", type=click.IntRange(8), multiple=True, default=HIDDEN, help="Hidden sizes of the model.")
def adaptive_topk(quick: bool, seed: int, json_file: Path | None, text: Path | None, hidden: tuple[int, ...]) -> None:
    """What a model loses whose boundaries are crossed by the largest numbers of each token alone."""
    torch.set_num_threads(1)
    seeds, steps = range(seed, seed + (1 if quick else SEEDS)), QUICK_STEPS // 3 if quick else STEPS
    found = list(rows(corpus(text), seeds, steps, hidden[:1] if quick else hidden))
    show(f"Loss, mean of the last {min(LAST, steps)} of {steps} steps", found)
    if json_file is not None:
        write_json(json_file, found)


if __name__ == "__main__":
    run(adaptive_topk)
