"""What rounded gradients cost: `python -m benchmarks.rounding [--repeats N]`.

Forward and backward of one hop, with the gradients added up in fp32, in 64 bits (`accumulate = "exact"`) and on a grid
(`reduce_codec = "blockwise16"`), in turn, on one thread; the stages and microbatches are those of the first benchmark.
See README.md beside this file.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

from benchmarks.throughput import MODEL
from swarmflow.compute.blockwise_sums import BlockwiseSums
from swarmflow.compute.exact import FixedPoint
from swarmflow.compute.grid import Blockwise
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


def made(stage: int, rounding: FixedPoint | Blockwise | None) -> StageRunner:
    """A stage with fresh weights; one with a grid as after a first step."""
    built = build_stage(MODEL, CUT, stage, device="cpu", rounding=rounding)
    init_stage(built, 0)
    for group in built.groups.values():
        if isinstance(group.sums, BlockwiseSums):
            group.sums.grid.follow(torch.ones_like(group.sums.peaks), 0)
    runner = StageRunner(built)
    runner.clear()
    return runner


def measure(stage: int, sequences: int, repeats: int) -> list[tuple[float, float]]:
    """Median seconds of each way, and the median of their ratios to fp32's, round by round."""
    hop = TimedHop(stage, sequences)
    runners = [made(stage, None), made(stage, FixedPoint(MICROBATCHES)), made(stage, Blockwise(MICROBATCHES))]
    rounds = []
    for repeat in range(repeats + WARM_UP):
        # Turn about, so that none always comes right after the same other one's memory was touched.
        order = [(repeat + turn) % len(runners) for turn in range(len(runners))]
        took = {number: hop.seconds(runners[number]) for number in order}
        rounds.append([took[number] for number in range(len(runners))])
    rounds = rounds[WARM_UP:]
    return [
        (statistics.median(row[number] for row in rounds), statistics.median(row[number] / row[0] for row in rounds))
        for number in range(len(runners))
    ]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rounding", description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("tokens      stage    fp32           exact     blockwise16")
    for sequences in (1, 4):
        for stage in (0, 1):
            (fp32, _), *others = measure(stage, sequences, options.repeats)
            name, rest = f"{sequences} x {SEQ_LEN}", "".join(f"{s * 1e3:7.0f} ms {ratio:.3f}" for s, ratio in others)
            print(f"{name:9s} {stage:7d} {fp32 * 1e3:4.0f} ms{rest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
