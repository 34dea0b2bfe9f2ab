"""A small llama, trained by a plain loop and by the stages of a run one after the other, on the same batches.

The plain loop is transformers' model and torch's optimizer. The stages, their runners, optimizers, codecs and first
weights are those of production: a swarm has the same numbers up to the order of its sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from experiments.boundaries.training import HIDDEN, MODEL, RATE, SEQ_LEN, SEQUENCES, WARMUP
from swarmflow.compute.codec import BLOCK_ELEMENTS, Codec
from swarmflow.compute.families import dissect, model_config, to_config
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.topk import codec_of
from swarmflow.compute.weights import init_stage
from swarmflow.runtime.execution.served import Served

BLOCKS, CUT = 6, (2, 4)  # three stages of two blocks
STEPS = 120
CLIP = 1.0


@dataclass(frozen=True)
class Manner:
    """How a run is trained. delay: steps by which an update is late. state_bits: of the optimizer's moments."""

    codec: str = "none"
    delay: int = 0
    state_bits: int = 32


def config(shared: int | None) -> dict[str, Any]:
    """The model, with so many groups of blocks that share their weights; None: each block has its own."""
    sizes = {"num_hidden_layers": BLOCKS, "hidden_size": HIDDEN, "intermediate_size": HIDDEN * 11 // 4}
    return model_config({**MODEL, **sizes}, shared)


def batches(tokens: Tensor, seed: int, steps: int) -> Iterator[Tensor]:
    """Windows of the text, int64 [SEQUENCES, SEQ_LEN + 1] a step. tokens: uint8 or int64 [n]."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(tokens) - SEQ_LEN, (SEQUENCES,), generator=generator).tolist()
        yield torch.stack([tokens[start : start + SEQ_LEN + 1] for start in starts]).long()


def rate(step: int) -> float:
    """Return the learning rate of a step's update."""
    return RATE * min(1.0, (step + 1) / WARMUP)


def one_process(tokens: Tensor, shared: int | None, seed: int, steps: int) -> list[float]:
    """Return the loss of each step of the plain loop."""
    model, settings = _whole_model(shared, seed), OptimizerSettings()
    optimizer = torch.optim.AdamW(
        model.parameters(), RATE, settings.betas, settings.eps, weight_decay=settings.weight_decay
    )
    losses: list[float] = []
    for step, rows in enumerate(batches(tokens, seed, steps)):
        optimizer.zero_grad()
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _whole_model(shared: int | None, seed: int) -> nn.Module:
    """Transformers' model with the first weights of a run; blocks that share theirs are one module."""
    given = config(shared)
    stage = build_stage(given, (), 0, device="cpu")
    init_stage(stage, seed)
    model: nn.Module = AutoModelForCausalLM.from_config(to_config(given))
    blocks = model.get_submodule(dissect(to_config(given)).blocks_name)
    assert isinstance(blocks, nn.ModuleList)
    for group in dissect(to_config(given)).shared:
        for block in group[1:]:
            blocks[block] = blocks[group.start]
    weights = {name: values for name, values, _ in stage.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights.pop(name))
    assert not weights, "the plain loop has all of the run's parameters"
    return model


def in_stages(tokens: Tensor, shared: int | None, manner: Manner, seed: int, steps: int) -> list[float]:
    """Return the loss of each step of three stages, as the peers of a run compute it.

    With a delay the gradient of a step is that of the parameters before the last `delay` updates.
    """
    stages = [_served(config(shared), number, manner, seed) for number in range(len(CUT) + 1)]
    codec, losses = codec_of(manner.codec, BLOCK_ELEMENTS), list[float]()
    for step, rows in enumerate(batches(tokens, seed, steps)):
        losses.append(_compute(stages, step, rows, codec))
        if step >= manner.delay:
            _learn(stages, step - manner.delay, rows[:, 1:].numel())
    return losses


def _served(given: dict[str, Any], number: int, manner: Manner, seed: int) -> Served:
    align = BLOCK_ELEMENTS if manner.state_bits == 8 else 1
    stages = [build_stage(given, CUT, number, device="cpu", align=align) for _ in range(1 + manner.delay)]
    for stage in stages:
        init_stage(stage, seed)
    optimizer = make_optimizer(OptimizerSettings(state_bits=manner.state_bits))
    for group in stages[0].groups.values():
        group.allocate(optimizer.state_names())
    return Served(tuple(StageRunner(stage) for stage in stages), optimizer, version=0)


def _compute(stages: Sequence[Served], step: int, rows: Tensor, codec: Codec) -> float:
    """Compute the gradients of a batch [B, T + 1]; return its loss."""
    runners = [served.runner(step) for served in stages]
    passed = rows[:, :-1]
    for runner in runners[:-1]:
        passed = _sent(runner.forward(step, passed), codec)
    total, count, gradient = runners[-1].loss(step, passed, rows[:, 1:])
    for runner in reversed(runners[:-1]):
        assert gradient is not None, "the first stage alone has none"
        gradient = runner.backward(step, _sent(gradient, codec))
    return total / count


def _learn(stages: Sequence[Served], step: int, count: int) -> None:
    """Update all stages with the gradients of a step of so many target tokens."""
    squares = sum(group.sums.sum_of_squares() for served in stages for group in served.groups(step).values())
    scale = min(1.0, CLIP / (squares**0.5 / count + 1e-6)) / count
    for served in stages:
        served.update(step, scale, rate(step))


def _sent(tensor: Tensor, codec: Codec) -> Tensor:
    """Return what the receiver of a tensor gets."""
    return codec.decode(codec.encode(tensor), tuple(tensor.shape), tensor.dtype, tensor.device)
