"""What exact accumulation costs: `python -m benchmarks.exact [--repeats N]`.

Forward and backward of one hop, with the gradients added up in fp32 and in fixed point, in turn, on one thread; the
stages and microbatches are those of the first benchmark. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

from benchmarks.throughput import MODEL
from swarmflow.compute.exact import FixedPoint
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.weights import init_stage

CUT = (4,)
SEQ_LEN = 128
MICROBATCHES = 32
WARM_UP = 2


class TimedHop:
    """One microbatch of `sequences` x 128 tokens through one of the two stages, there and back."""

    def __init__(self, stage: int, sequences: int) -> None:
        self.stage = stage
        shape = (sequences, SEQ_LEN, MODEL["hidden_size"])
        self._tokens = torch.randint(0, MODEL["vocab_size"], shape[:2])
        self._targets = torch.randint(0, MODEL["vocab_size"], shape[:2])
        self._input, self._gradient = torch.randn(shape), torch.randn(shape) * 1e-2

    def seconds(self, runner: StageRunner) -> float:
        """CPU time of the one thread, which other work on the machine lengthens less than the clock's."""
        began_s = time.thread_time()
        if self.stage == 0:
            runner.forward(0, self._tokens)
            runner.backward(0, self._gradient)
        else:
            runner.loss(0, self._input, self._targets)
        return time.thread_time() - began_s


def made(stage: int, fixed: FixedPoint | None) -> StageRunner:
    """A stage with fresh weights."""
    built = build_stage(MODEL, CUT, stage, device="cpu", fixed=fixed)
    init_stage(built, 0)
    return StageRunner(built)


def measure(stage: int, sequences: int, repeats: int) -> tuple[float, float, float]:
    """Median seconds in fp32 and in fixed point, and the median of their ratios, pair by pair."""
    hop = TimedHop(stage, sequences)
    runners = [made(stage, None), made(stage, FixedPoint(MICROBATCHES))]
    pairs = []
    for repeat in range(repeats + WARM_UP):
        # Turn about, so that neither always comes right after the other's memory was touched.
        order = (0, 1) if repeat % 2 else (1, 0)
        took = {number: hop.seconds(runners[number]) for number in order}
        pairs.append((took[0], took[1]))
    pairs = pairs[WARM_UP:]
    fp32, exact = (statistics.median(column) for column in zip(*pairs, strict=True))
    return fp32, exact, statistics.median(exact / fp32 for fp32, exact in pairs)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exact", description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("tokens      stage    fp32   exact   ratio")
    for sequences in (1, 4):
        for stage in (0, 1):
            fp32, exact, ratio = measure(stage, sequences, options.repeats)
            name = f"{sequences} x {SEQ_LEN}"
            print(f"{name:9s} {stage:7d} {fp32 * 1e3:4.0f} ms {exact * 1e3:4.0f} ms {ratio:7.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
