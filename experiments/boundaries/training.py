"""Trains a small llama in the stages of a run, one after the other in one process, with a boundary between them.

The stages, their runners, optimizers, codecs and first weights are those of production: a swarm has the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swarmflow.boundary import Boundary
from swarmflow.compute.codec import BLOCK_ELEMENTS, Codec
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.topk import codec_of, kept_share_of
from swarmflow.compute.weights import init_stage
from swarmflow.runtime.execution.served import Served

HIDDEN = 128
MODEL: Mapping[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
STEPS = 200
SEQUENCES, SEQ_LEN = 8, 64  # of a step, in one microbatch
RATE, WARMUP = 1e-3, 20


@dataclass(frozen=True)
class Crossing:
    """What happens to a tensor between two stages."""

    boundary: Boundary | None = None
    codec: str = "none"
    kept: tuple[int, ...] = ()  # of 256 numbers, at each boundary, where the codec is adaptive


def train(
    tokens: Tensor, cut: Sequence[int], crossing: Crossing, seed: int, steps: int = STEPS, hidden: int = HIDDEN
) -> list[float]:
    """Return the loss of each step, of a model from scratch. tokens: uint8 or int64 [n], of which windows are drawn."""
    stages = [_served(cut, stage, crossing, seed, hidden) for stage in range(len(cut) + 1)]
    codecs = [codec_of(crossing.codec, kept) for kept in crossing.kept or [BLOCK_ELEMENTS] * len(cut)]
    for served, codec in zip(stages[1:], codecs, strict=True):
        served.runner(0).begin(EXPONENT, kept_share=kept_share_of(codec))
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for step in range(steps):
        starts = torch.randint(len(tokens) - SEQ_LEN, (SEQUENCES,), generator=generator).tolist()
        rows = torch.stack([tokens[start : start + SEQ_LEN + 1] for start in starts]).long()
        losses.append(_step(stages, rows, codecs, step))
    return losses


def _served(cut: Sequence[int], number: int, crossing: Crossing, seed: int, hidden: int) -> Served:
    model = {**MODEL, "hidden_size": hidden, "intermediate_size": hidden * 11 // 4}
    stage = build_stage(model, cut, number, device="cpu", boundary=crossing.boundary)
    init_stage(stage, seed)
    served = Served((StageRunner(stage),), make_optimizer(OptimizerSettings()), version=0)
    for group in stage.groups.values():
        group.allocate(served.optimizer.state_names())
    return served


def _step(stages: Sequence[Served], rows: Tensor, codecs: Sequence[Codec], step: int) -> float:
    """Train on one batch [B, T + 1], as the peers of a run do; return its loss."""
    runners = [served.runner(step) for served in stages]
    passed = rows[:, :-1]
    for runner, codec in zip(runners[:-1], codecs, strict=True):
        passed = _sent(runner.forward(step, passed), codec)
    total, count, gradient = runners[-1].loss(step, passed, rows[:, 1:])
    for runner, codec in zip(reversed(runners[:-1]), reversed(codecs), strict=True):
        assert gradient is not None, "the first stage alone has none"
        gradient = runner.backward(step, _sent(gradient, codec))
    squares = sum(group.sums.sum_of_squares() for served in stages for group in served.groups(step).values())
    scale = min(1.0, 1.0 / (squares**0.5 / count + 1e-6)) / count
    for served in stages:
        served.update(step, scale, RATE * min(1.0, (step + 1) / WARMUP))
    return total / count


def _sent(tensor: Tensor, codec: Codec) -> Tensor:
    """Return what the receiver of a tensor gets."""
    return codec.decode(codec.encode(tensor), tuple(tensor.shape), tensor.dtype, tensor.device)
