"""CPU time of the head beside the plain loop's, with many words: `python -m benchmarks.head`. See README.md."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor, nn

from swarmflow.compute.families import model_config
from swarmflow.compute.precision import HalfWeights
from swarmflow.compute.stage import LOGITS_ELEMENTS_MAX, Stage, build_stage
from swarmflow.compute.weights import init_stage

MODEL: dict[str, Any] = {
    "model_type": "llama",
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


def plain_s(weight: Tensor, hidden: Tensor, targets: Tensor, precision: str) -> tuple[float, Tensor]:
    """Return the CPU time of torch's own operations, and the gradient of the hidden states.

    Pieces whose logits take 64 MiB, torch's cross-entropy, and its autocast of the fp32 weights.
    """
    head, top = nn.Parameter(weight.clone()), hidden.clone().requires_grad_()
    head.grad = torch.zeros_like(weight)
    tokens = max(1, LOGITS_ELEMENTS_MAX // len(weight))
    began_s = time.process_time()
    for start in range(0, len(targets), tokens):
        where = slice(start, start + tokens)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            logits = nn.functional.linear(top[where], head).float()
            loss = nn.functional.cross_entropy(logits, targets[where], reduction="sum")
        loss.backward()
    assert top.grad is not None
    return time.process_time() - began_s, top.grad


def stage_s(stage: Stage, hidden: Tensor, targets: Tensor, precision: str) -> tuple[float, Tensor]:
    """Return the CPU time of a last stage's head, and the gradient of the hidden states."""
    top = hidden[None].clone().requires_grad_()
    began_s = time.process_time()
    for piece, wanted in stage.pieces(top, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = stage.head_loss(piece, wanted)
        loss.backward()
    assert top.grad is not None
    return time.process_time() - began_s, top.grad[0]


def main() -> None:
    """Print a line for each precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=1 << 17)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = {"hidden_size": options.width, "vocab_size": options.words}
    stage = build_stage(model_config(MODEL | sizes), (1,), 1, device="cpu")
    init_stage(stage, 0)
    weight = next(values for name, values, _ in stage.named_parameters() if name == f"{stage.head_name}.weight")
    hidden, targets = torch.randn(options.tokens, options.width), torch.randint(options.words, (options.tokens,))
    for precision in ("fp32", "bf16"):
        if precision == "bf16":
            HalfWeights(stage)
        pairs = []
        for _ in range(options.repeats):
            plain, wanted = plain_s(weight.detach(), hidden, targets, precision)
            ours, found = stage_s(stage, hidden, targets, precision)
            pairs.append((plain, ours))
        apart = float((found - wanted).norm() / wanted.norm())
        plain, ours = (min(taken) for taken in zip(*pairs, strict=True))
        print(
            f"{precision}: {ours:.2f} s of CPU, {plain:.2f} s with torch's own: {1 - ours / plain:.0%} less; "
            f"gradients {apart:.1e} apart",
            flush=True,
        )


if __name__ == "__main__":
    main()
