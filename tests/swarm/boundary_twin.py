"""The twin of `[model] boundary`: the same architecture as plain torch modules, written from docs/run-toml.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm
from transformers import PreTrainedModel

from swarmflow.chaos.plain import Recipe, load_model, microbatch


def first_values(boundary: str, hidden_size: int, number: int, seed: int = 0) -> dict[str, Tensor]:
    """The layers of boundary `number` of a run before its first step, by name."""
    kind, _, given = boundary.partition(":")
    width = int(given) if kind == "bottleneck" else hidden_size // int(given)
    digest = blake3(f"{seed}/boundary.{number}".encode()).digest(length=8)
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    order = torch.randperm(hidden_size, generator=generator).tolist()
    signs = torch.randint(2, (hidden_size,), generator=generator).tolist()
    down = torch.zeros(width, hidden_size)
    for place, feature in enumerate(order):
        down[place % width, feature] = 1.0 if signs[place] else -1.0
    down /= down.square().sum(1, keepdim=True).sqrt()
    values = {
        "compress.norm.weight": torch.ones(hidden_size),
        "compress.norm.bias": torch.zeros(hidden_size),
        "expand.norm.weight": torch.ones(width),
        "expand.norm.bias": torch.zeros(width),
    }
    if kind == "bottleneck":
        return values | {"compress.weight": down, "expand.weight": down.T.contiguous() * (hidden_size / width)}
    windows = torch.zeros(hidden_size, width)
    for feature in range(hidden_size):
        windows[feature, feature // int(given)] = 1.0
    return values | {"expand.weight": windows}


class Twin(nn.Module):
    """A causal model of transformers with the layers of a boundary between the blocks where it is cut."""

    def __init__(self, folder: Path, boundary: str, cut: tuple[int, ...]) -> None:
        super().__init__()
        self.model: PreTrainedModel = load_model(folder)
        self.added = nn.ParameterDict()
        prefix = self.model.base_model_prefix
        blocks: Any = next(m for n, m in self.model.named_modules() if n in (f"{prefix}.h", f"{prefix}.layers"))
        for number, first in enumerate(cut, start=1):
            names = {}
            for leaf, value in first_values(boundary, self.model.config.hidden_size, number).items():
                names[leaf] = f"boundary.{number}.{leaf}"
                self.added[names[leaf].replace(".", "/")] = nn.Parameter(value)
            blocks[first - 1].register_forward_hook(self._crossing(boundary, names))

    def _crossing(self, boundary: str, names: Mapping[str, str]) -> Any:  # noqa: ANN401  # torch's type of a hook
        def cross(block: nn.Module, given: Any, output: Any) -> Any:  # noqa: ANN401
            own = {leaf: self.added[name.replace(".", "/")] for leaf, name in names.items()}
            x = output[0] if isinstance(output, tuple) else output
            x = layer_norm(x, x.shape[-1:], own["compress.norm.weight"], own["compress.norm.bias"])
            if "compress.weight" in own:
                x = x @ own["compress.weight"].T
            else:
                windows = x.split(int(boundary.split(":")[1]), dim=-1)
                x = torch.stack([window.max(-1).values for window in windows], dim=-1)
            x = layer_norm(x, x.shape[-1:], own["expand.norm.weight"], own["expand.norm.bias"])
            x = x @ own["expand.weight"].T
            return (x, *output[1:]) if isinstance(output, tuple) else x

        return cross

    def parameters_by_name(self) -> dict[str, Tensor]:
        """Name in a run -> the parameter, a shared weight once."""
        added = {name.replace("/", "."): value for name, value in self.added.items()}
        return {**dict(self.model.named_parameters()), **added}

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The sum over all target tokens."""
        logits = self.model(input_ids=inputs, use_cache=False).logits
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def train(twin: Twin, corpus: Path, of: Recipe, *, reverse: bool = False) -> tuple[dict[str, Tensor], list[float]]:
    """Train it with AdamW; return its parameters, and the loss of each step.

    reverse: add a step's microbatches up from the last to the first.
    """
    given, losses = of.optimizer, []
    parameters = list(twin.parameters())
    how = {"lr": given["lr"], "betas": given["betas"], "eps": given["eps"], "weight_decay": given["weight_decay"]}
    optimizer = torch.optim.AdamW(parameters, **how)
    tokens = torch.frombuffer(bytearray(corpus.read_bytes()), dtype=torch.uint8).long()
    count = of.microbatches * of.sequences * of.seq_len
    for step in range(of.steps):
        optimizer.zero_grad()
        total = 0.0
        for index in sorted(range(of.microbatches), reverse=reverse):
            loss = twin.loss(*microbatch(tokens, of, step, index))
            torch.autograd.backward(loss)
            total += float(loss.detach())
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad /= count
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(total / count)
    return {name: value.detach().clone() for name, value in twin.parameters_by_name().items()}, losses


def exported(folder: Path) -> dict[str, Tensor]:
    """The parameters of an export of such a run."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("stage-*.safetensors")):
        found |= load_file(path)
    return found
