"""`python -m experiments.boundaries`: see the README beside this file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import click
import torch
from torch import Tensor

from experiments.boundaries.training import HIDDEN, STEPS, Crossing, train
from experiments.common.arguments import options, progress, run
from experiments.common.rows import Row, row, write_json
from experiments.common.table import show
from swarmflow.boundary import Boundary
from swarmflow.demo.corpus import write_corpus
from swarmflow.errors import ConfigError

LAST = 20  # steps whose losses are averaged
QUICK_STEPS = 30
WHOLE = "no compression"
LOSS, RATIO, BYTES = "Loss", "Loss, of the uncompressed model's", "Numbers that travel, of the hidden size's"
CUTS = {"2 stages": (2,), "4 stages": (1, 2, 3)}
PAPER_WHOLE = 19.7  # Table 8, validation perplexity on OpenWebText
Case = tuple[str, Crossing, dict[str, float]]  # name, what crosses, the paper's perplexity by stages
CASES: tuple[Case, ...] = (
    ("8 bits", Crossing(codec="blockwise8"), {"2 stages": 19.6, "4 stages": 19.7}),
    ("bottleneck, a half", Crossing(Boundary("bottleneck", HIDDEN // 2)), {"2 stages": 19.5, "4 stages": 21.7}),
    ("maxout, a half", Crossing(Boundary("maxout", 2)), {"2 stages": 19.6, "4 stages": 21.4}),
    ("bottleneck, a quarter", Crossing(Boundary("bottleneck", HIDDEN // 4)), {"2 stages": 21.6, "4 stages": 28.9}),
    ("maxout, a quarter", Crossing(Boundary("maxout", 4)), {"2 stages": 20.5, "4 stages": 21.3}),
    ("bottleneck, a quarter, 8 bits", Crossing(Boundary("bottleneck", HIDDEN // 4), "blockwise8"), {}),
    ("maxout, a quarter, 8 bits", Crossing(Boundary("maxout", 4), "blockwise8"), {}),
)


def corpus(text: Path | None) -> Tensor:
    """The bytes of a file, or of source text that this machine has. Raises ConfigError."""
    try:
        with TemporaryDirectory() as folder:
            path = text or Path(folder, "corpus.txt")
            if text is None:
                write_corpus(path, 1 << 18)
            return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    except OSError as error:
        raise ConfigError(f"--text {text}: {error.strerror}") from error


def losses(tokens: Tensor, cut: tuple[int, ...], crossing: Crossing, seeds: range, steps: int) -> list[float]:
    """The mean loss of the last steps, of each seed."""
    return [fmean(train(tokens, cut, crossing, seed, steps)[-LAST:]) for seed in seeds]


def rows(tokens: Tensor, seeds: range, steps: int, settings: tuple[str, ...], cases: tuple[Case, ...]) -> Iterator[Row]:
    """The rows of all cases; without compression the cut changes nothing."""
    whole = losses(tokens, CUTS[settings[0]], Crossing(), seeds, steps)
    work = [(setting, case) for setting in settings for case in cases]
    for setting in settings:
        yield row(setting, WHOLE, LOSS, whole)
    for setting, (name, crossing, paper) in progress(work, len(work), "boundaries"):
        found = losses(tokens, CUTS[setting], crossing, seeds, steps)
        theirs = math.log(paper[setting]) / math.log(PAPER_WHOLE) if setting in paper else None
        width = crossing.boundary.width(HIDDEN) if crossing.boundary is not None else HIDDEN
        yield row(setting, name, LOSS, found)
        yield row(setting, name, RATIO, [ours / plain for ours, plain in zip(found, whole, strict=True)], theirs)
        yield row(setting, name, BYTES, [width / HIDDEN])


@click.command("boundaries")
@options
@click.option("--seeds", type=click.IntRange(1), default=2, show_default=True, help="Runs of each case.")
@click.option("--text", type=click.Path(dir_okay=False, path_type=Path), help="To learn; not given: source code.")
def boundaries(seeds: int, quick: bool, seed: int, json_file: Path | None, text: Path | None) -> None:
    """What a model loses whose boundaries between stages are compressed by layers that it learns."""
    torch.set_num_threads(1)
    numbers, steps = range(seed, seed + (1 if quick else seeds)), QUICK_STEPS if quick else STEPS
    settings, cases = (("4 stages",), CASES[3:5]) if quick else (tuple(CUTS), CASES)
    found = list(rows(corpus(text), numbers, steps, settings, cases))
    show(f"Loss, mean of the last {LAST} of {steps} steps", found)
    if json_file is not None:
        write_json(json_file, found)


if __name__ == "__main__":
    run(boundaries)
