"""Cuts a model into stages so that the slowest stage is as fast as it can be."""

from __future__ import annotations

import heapq
import itertools
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from swarmflow.compute.families import dissect, init_module, shrink, to_config
from swarmflow.compute.layout import check_cut
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.weights import init_stage
from swarmflow.errors import ModelError

_TRIAL_TOKENS = 64
_TRIALS = 5


@dataclass(frozen=True)
class Costs:
    """Seconds of forward and backward of one microbatch: the embedding, one block, the head with the loss."""

    embedding_s: float
    block_s: float
    head_s: float


def plan_cut(config: Mapping[str, Any], stages: int, costs: Costs | None = None) -> tuple[int, ...]:
    """The first block of stages 1, 2, ...: an even cut by measured compute.

    costs: measured on this machine when not given. Raises ModelError when there are more stages than blocks.
    """
    blocks = block_count(config)
    if not 1 <= stages <= blocks:
        raise ModelError(f"{stages} stages asked of a model with {blocks} blocks; allowed: 1 to {blocks}")
    if stages == 1:
        return ()
    costs = measure_costs(config) if costs is None else costs
    counts = [1] * stages
    load = [costs.block_s] * stages
    load[0] += costs.embedding_s
    load[-1] += costs.head_s
    # Like blocks: giving each next one to the stage that it leaves least loaded makes the slowest stage fastest.
    heap = [(seconds + costs.block_s, stage) for stage, seconds in enumerate(load)]
    heapq.heapify(heap)
    for _ in range(blocks - stages):
        seconds, stage = heap[0]
        counts[stage] += 1
        heapq.heapreplace(heap, (seconds + costs.block_s, stage))
    return check_cut(list(itertools.accumulate(counts[:-1])), blocks)


def block_count(config: Mapping[str, Any]) -> int:
    """Number of blocks of a model. Raises ModelError."""
    return int(to_config(config).num_hidden_layers)


def measure_costs(config: Mapping[str, Any], *, tokens: int = _TRIAL_TOKENS) -> Costs:
    """Measures on three blocks, one a stage; the whole model is never built. Raises ModelError."""
    few = shrink(config, 3)
    positions = getattr(to_config(config), "max_position_embeddings", None)  # gpt2's n_positions goes by this name too
    tokens = min(tokens, positions or tokens)
    seconds = [_stage_seconds(few, stage, tokens) for stage in range(3)]
    block_s = max(seconds[1], 1e-9)
    return Costs(max(0.0, seconds[0] - block_s), block_s, max(0.0, seconds[2] - block_s))


def check_family(config: Mapping[str, Any]) -> None:
    """Compares two blocks on two stages with transformers' own model, on random weights and a small vocabulary.

    Raises ModelError when the logits differ: then the family does something between its blocks that stages lack.
    """
    small = shrink(config, 2, vocab_size=32)
    parts = [build_stage(small, (1,), stage, device="cpu") for stage in range(2)]
    whole = dissect(to_config(small)).model
    whole.to_empty(device="cpu")
    whole.tie_weights()
    ids = torch.arange(8).view(1, 8) % 32
    with torch.no_grad():
        for part in parts:
            init_stage(part, seed=0)
        for module in whole.modules():
            if any(True for _ in module.buffers(recurse=False)):
                init_module(whole, module)
        own = dict(whole.named_parameters())
        for part in parts:
            for name, values, _ in part.named_parameters():
                own[name].copy_(values)
        expected = whole(input_ids=ids, use_cache=False).logits
        got = parts[1].forward(parts[0].forward(ids))
    if not torch.allclose(got, expected, rtol=1e-4, atol=1e-5):
        raise ModelError(f"a {config.get('model_type')} model gives other results when it is cut; it is not supported")


def _stage_seconds(config: Mapping[str, Any], stage: int, tokens: int) -> float:
    part = build_stage(config, (1, 2), stage, device="cpu")
    init_stage(part, seed=0)
    runner = StageRunner(part)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(part.vocab_size, (1, tokens), generator=generator)
    hidden = torch.randn(1, tokens, part.hidden_size, generator=generator)
    taken: list[float] = []
    for _ in range(_TRIALS):
        start = time.perf_counter()
        if part.last:
            runner.loss(0, hidden, ids)
        else:
            runner.backward(0, torch.ones_like(runner.forward(0, ids if part.first else hidden)))
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
