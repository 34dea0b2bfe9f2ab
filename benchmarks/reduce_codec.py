"""What rounding the gradients costs in loss: `python -m benchmarks.reduce_codec [--delay 1] [...]`.

One process trains a small llama from scratch, with the gradients of a step's microbatches added up in fp32, and rounded
to the grid of `reduce_codec = "blockwise16"`: by the code of production, which gives a swarm the same bits
(tests/swarm/test_bit_exact.py). With `--delay 1` both have gradients one version old. And how many bits an element of
the sums takes on the way, in what a member of four has summed and in all of it. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from swarmflow.compute.flat import rounding_of
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.sums import Sums
from swarmflow.compute.weights import init_stage
from swarmflow.demo.corpus import write_corpus
from swarmflow.runtime.execution.served import Served

MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
STEPS = 200
SEQ_LEN = 64
RATE = 1e-3
LAST = 20  # steps whose losses are averaged
CASES = ((8, 4), (64, 1), (256, 1))  # microbatches of a step, sequences of a microbatch


@dataclass
class Trained:
    """What was measured in each step."""

    losses: list[float] = field(default_factory=list)
    # Bits of an element on the way: of what a quarter of the microbatches adds up to, and of all. Not in the first
    # steps, in which sums take 32 bits.
    part_bits: list[float] = field(default_factory=list)
    sum_bits: list[float] = field(default_factory=list)


def train(tokens: Tensor, codec: str, microbatches: int, sequences: int, seed: int, delay: int = 0) -> Trained:
    """Train the model from scratch."""
    rounding = rounding_of("fp32", codec, microbatches)
    runners = [StageRunner(build_stage(MODEL, (), 0, device="cpu", rounding=rounding)) for _ in range(1 + delay)]
    for runner in runners:
        init_stage(runner.stage, seed)
    served = Served(tuple(runners), make_optimizer(OptimizerSettings()), version=0)
    served.stage.groups["own"].allocate(served.optimizer.state_names())
    served.begin()
    generator = torch.Generator().manual_seed(seed)
    count, found = microbatches * sequences * SEQ_LEN, Trained()
    for step in range(STEPS):
        total, runner = 0.0, served.runner(step)
        sums = runner.stage.groups["own"].sums
        for index in range(microbatches):
            starts = torch.randint(len(tokens) - SEQ_LEN, (sequences,), generator=generator)
            rows = torch.stack([tokens[start : start + SEQ_LEN + 1] for start in starts])
            number = step * microbatches + index
            total += runner.loss(index, rows[:, :-1], rows[:, 1:], number=number)[0]
            if index + 1 == microbatches // 4 and step > delay:
                found.part_bits.append(_bits(sums))
        if step > delay:
            found.sum_bits.append(_bits(sums))
        norm = sums.sum_of_squares() ** 0.5 / count
        scale = min(1.0, 1.0 / (norm + 1e-6)) / count
        served.update(step, scale, RATE * min(1.0, (step + 1) / 20))
        found.losses.append(total / count)
    return found


def _bits(sums: Sums) -> float:
    return 8 * len(memoryview(sums.pack(0, sums.elements)).cast("B")) / sums.elements


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reduce_codec", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--delay", type=int, choices=(0, 1), default=0, help="[train] delay of both")
    parser.add_argument(
        "--cases", type=int, default=len(CASES), help="only so many of them, those with less to compute first"
    )
    parser.add_argument("--text", type=Path, help="a file; not given: text that is made up")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        if options.text is None:
            write_corpus(Path(folder, "corpus.txt"), 1 << 18)
        text = (options.text or Path(folder, "corpus.txt")).read_bytes()
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    print(f"loss, mean of the last {LAST} of {STEPS} steps, delay = {options.delay}")
    print("microbatches  seed    fp32  blockwise16   ratio  bits: a quarter, all (mean, most)")
    for microbatches, sequences in CASES[: options.cases]:
        for seed in range(options.seeds):
            without, found = (
                train(tokens, codec, microbatches, sequences, seed, options.delay) for codec in ("none", "blockwise16")
            )
            plain, rounded = (statistics.mean(each.losses[-LAST:]) for each in (without, found))
            bits = (f"{statistics.mean(each):.1f} {max(each):.1f}" for each in (found.part_bits, found.sum_bits))
            loss = f"{plain:7.4f} {rounded:12.4f} {rounded / plain:7.4f}"
            print(f"{microbatches:12d} {seed:5d} {loss}  {', '.join(bits)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
