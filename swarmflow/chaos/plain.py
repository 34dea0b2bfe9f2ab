"""The oracle: a plain single-process PyTorch loop with the same model and data. It uses no code of swarmflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Recipe:
    """The settings of a training."""

    steps: int
    seq_len: int  # T
    microbatches: int  # N, a step
    sequences: int  # B, a microbatch
    optimizer: Mapping[str, Any]  # as RUN.toml's [optimizer]; name "adamw" or "sgd", a constant learning rate


def write_model(config: PreTrainedConfig, folder: Path, seed: int = 0) -> None:
    """Write a Hugging Face folder with fresh weights.

    Noise on all of them keeps biases away from zero: of a tensor that contains only rounding errors (the key biases'
    gradient is zero mathematically) a relative difference would say nothing.
    """
    torch.manual_seed(seed)
    factory: Any = AutoModelForCausalLM  # untyped in transformers
    model: PreTrainedModel = factory.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    model.save_pretrained(folder)


def load_model(folder: Path) -> PreTrainedModel:
    """Return the model of a folder, as plain transformers loads it, in fp32 and without dropout."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    return model


def parameters(model: PreTrainedModel) -> dict[str, Tensor]:
    """Name -> fp32 copy, a shared weight once."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


class AddingUp(Protocol):
    """How the gradients of a step's microbatches become one, where autograd does not simply add them up."""

    def add(self, model: PreTrainedModel, number: int) -> None:
        """Take the gradients of a microbatch from the parameters. number: of the microbatch, over all steps."""
        ...

    def finish(self, model: PreTrainedModel) -> None:
        """Give the parameters the gradients of the step."""
        ...


def train(
    folder: Path,
    corpus: Path,
    recipe: Recipe,
    *,
    reverse: bool = False,
    adding_up: AddingUp | None = None,
    change: Callable[[PreTrainedModel], object] = lambda model: None,
) -> tuple[dict[str, Tensor], list[float]]:
    """Train the model of `folder` on a file's bytes, and return (parameters, the loss of each step).

    reverse: adds up a step's microbatches from the last to the first, which shows what the order of additions does.
    change: what is done with the model before.
    """
    model, losses = load_model(folder), []
    change(model)
    for loss in _steps(model, corpus, recipe, reverse, adding_up):
        losses.append(loss)
    return parameters(model), losses


def versions(folder: Path, corpus: Path, recipe: Recipe, *, reverse: bool = False) -> Iterator[dict[str, Tensor]]:
    """Train likewise, and yield the parameters after each step."""
    model = load_model(folder)
    for _ in _steps(model, corpus, recipe, reverse, None):
        yield parameters(model)


def _steps(
    model: PreTrainedModel, corpus: Path, recipe: Recipe, reverse: bool, adding_up: AddingUp | None
) -> Iterator[float]:
    """Train a model step by step, and yield the loss of each."""
    optimizer = _optimizer(model, recipe.optimizer)
    clip = float(recipe.optimizer.get("clip_grad_norm", 1.0))
    tokens = torch.frombuffer(bytearray(corpus.read_bytes()), dtype=torch.uint8).long()
    for step in range(recipe.steps):
        optimizer.zero_grad()
        total = 0.0
        order = range(recipe.microbatches)
        for index in reversed(order) if reverse else order:
            inputs, targets = microbatch(tokens, recipe, step, index)
            output = model(input_ids=inputs, use_cache=False)
            loss = cross_entropy(output.logits.flatten(0, 1), targets.flatten(), reduction="sum")
            if "aux_loss" in output:  # balances experts; transformers adds it to the mean of the tokens' losses
                loss = loss + _of(model).router_aux_loss_coef * output.aux_loss * targets.numel()
            torch.autograd.backward(loss)
            total += float(loss.detach())
            if adding_up is not None:
                adding_up.add(model, step * recipe.microbatches + index)
        if adding_up is not None:
            adding_up.finish(model)
        count = recipe.microbatches * recipe.sequences * recipe.seq_len
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= count
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        yield total / count


def _of(model: PreTrainedModel) -> Any:  # noqa: ANN401  # torch's modules have attributes of any type
    return model


def microbatch(tokens: Tensor, recipe: Recipe, step: int, index: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets [B, T] of microbatch `index` of `step`, by the data rule of the order "sequential"."""
    length, width = recipe.seq_len, recipe.sequences
    count = (len(tokens) - 1) // length
    first = (step * recipe.microbatches + index) * width
    starts = [((first + b) % count) * length for b in range(width)]
    inputs = torch.stack([tokens[start : start + length] for start in starts])
    targets = torch.stack([tokens[start + 1 : start + length + 1] for start in starts])
    return inputs, targets


def _optimizer(model: PreTrainedModel, settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    rate, decay = float(settings["lr"]), float(settings.get("weight_decay", 0.1))
    if settings["name"] == "sgd":
        momentum = float(settings.get("momentum", 0.9))
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=decay)
    first, second = settings.get("betas", (0.9, 0.95))
    eps = float(settings.get("eps", 1e-8))
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=(first, second), eps=eps, weight_decay=decay)
