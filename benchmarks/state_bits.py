"""Moments of 8 bits beside fp32 ones, their time, bytes and loss: `python -m benchmarks.state_bits --text FILE`.

One process with one thread on a CPU. See README.md.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch

from swarmflow.compute.blocks import alignment
from swarmflow.compute.families import model_config
from swarmflow.compute.flat import FlatGroup
from swarmflow.compute.layout import TensorSlot
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.weights import init_stage

ELEMENTS = 1 << 23  # of two parameters, together: 96 MB with fp32 moments, more than a cache
REPEATS = 5
MODEL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}
SEQUENCES, TOKENS = 16, 64  # of a step
RATES = {"adamw": 3e-3, "lamb": 1e-2, "sgd": 0.1}
WARMUP_STEPS = 20
LAST = 50  # steps whose mean loss is printed
BITS = (32, 8)


def update_ns(settings: OptimizerSettings) -> tuple[float, float]:
    """Return the CPU time of an update in nanoseconds, and the bytes of the moments, for each parameter."""
    half = ELEMENTS // 2
    slots = (TensorSlot("first", (half,), 0), TensorSlot("second", (half,), half))
    group, optimizer = FlatGroup.empty("own", slots, torch.device("cpu")), make_optimizer(settings)
    group.allocate(optimizer.state_names())
    group.params.normal_()
    gradient, taken = torch.randn(ELEMENTS), []
    for version in range(REPEATS):
        began = time.thread_time()
        optimizer.apply(group, gradient, 1.0, 1e-3, version)
        taken.append(time.thread_time() - began)
    return 1e9 * min(taken) / ELEMENTS, sum(tensor.nbytes for tensor in group.state.values()) / ELEMENTS


def last_loss(settings: OptimizerSettings, text: Path, steps: int, seed: int) -> float:
    """Return the mean loss of the last steps of a small model that learns a text, by bytes drawn with the seed."""
    stage = build_stage(model_config(MODEL), (), 0, device="cpu", align=alignment(settings.state_bits))
    init_stage(stage, seed)
    runner, optimizer = StageRunner(stage), make_optimizer(settings)
    [group] = stage.groups.values()
    group.allocate(optimizer.state_names())
    data = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8).long()
    drawn, losses, count = torch.Generator().manual_seed(seed), [], SEQUENCES * TOKENS
    for step in range(steps):
        starts = torch.randint(len(data) - TOKENS - 1, (SEQUENCES,), generator=drawn).tolist()
        rows = torch.stack([data[start : start + TOKENS + 1] for start in starts])
        losses.append(runner.loss(0, rows[:, :-1], rows[:, 1:], number=step)[0] / count)
        norm = math.sqrt(group.sums.sum_of_squares()) / count
        rate = RATES[settings.name] * min(1.0, (step + 1) / WARMUP_STEPS)
        optimizer.apply(group, group.sums.gradient(), min(1.0, 1.0 / (norm + 1e-6)) / count, rate, step)
        stage.zero_grads()
    return sum(losses[-LAST:]) / len(losses[-LAST:])


def main() -> None:
    """Print a line for each optimizer and number of bits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, help="what the model learns, such as Tiny Shakespeare; else only times")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--optimizers", nargs="+", choices=RATES, default=list(RATES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.optimizers:
        for bits in BITS:
            settings = OptimizerSettings(name, state_bits=bits)
            nanoseconds, kept = update_ns(settings)
            line = f"{name:5} {bits:2} bits: {nanoseconds:5.1f} ns and {kept:.3f} bytes a parameter"
            if options.text is not None:
                losses = [last_loss(settings, options.text, options.steps, seed) for seed in range(options.seeds)]
                line += ", loss " + ", ".join(f"{loss:.4f}" for loss in losses)
            print(line, flush=True)


if __name__ == "__main__":
    main()
