"""Networks of the tests of graphs: their names are given to `capture`, which imports them as a user's."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

ITEMS, WIDTH, CLASSES = 3, 6, 4


class RandomGraph(nn.Module):
    """Operators on the results of random earlier ones, so that tensors skip over others."""

    def __init__(self, seed: int, operators: int) -> None:
        super().__init__()
        drawn = random.Random(seed)
        self.plan: list[tuple[str, list[int]]] = []
        self.layers = nn.ModuleDict()
        for number in range(operators):
            kind = drawn.choice(["linear", "linear", "add", "multiply", "gelu", "norm", "mask"]) if number else "linear"
            if kind in ("linear", "norm"):
                self.layers[str(number)] = nn.Linear(WIDTH, WIDTH) if kind == "linear" else nn.BatchNorm1d(WIDTH)
            self.plan.append((kind, [drawn.choice([number, number, max(0, number - 1)]), drawn.randrange(number + 1)]))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum of the losses of the items."""
        values = [x]
        for number, (kind, (one, other)) in enumerate(self.plan):
            left, right = values[one], values[other]
            match kind:
                case "linear" | "norm":
                    value = self.layers[str(number)](left)
                case "add":
                    value = left + right
                case "multiply":
                    value = torch.tanh(left) * torch.sigmoid(right)
                case "gelu":
                    value = nn.functional.gelu(left)
                case _:
                    value = left.masked_fill(x > 0.5, 0.0) * (y % 2 + 1).unsqueeze(1)
            values.append(value)
        total = torch.stack(values[-3:]).sum(dim=0)
        return nn.functional.cross_entropy(self.head(total), y, reduction="sum")


def random_graph(seed: int, operators: int) -> nn.Module:
    """A random network."""
    return RandomGraph(seed, operators)


class Odd(nn.Module):
    """A network with one property that matters to stages. kind: which."""

    running: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.middle, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.unused = nn.Linear(1, 1)
        self.register_buffer("running", torch.zeros(WIDTH))
        self.drop = nn.Dropout(0.5)
        if kind == "recurrent":
            layers = (nn.GRU, nn.LSTM, nn.RNN)
            self.layers = nn.ModuleList(made(WIDTH, WIDTH, batch_first=True) for made in layers)
            self.cells = nn.ModuleList(made(WIDTH, WIDTH) for made in (nn.GRUCell, nn.RNNCell))
            self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.heads = nn.MultiheadAttention(WIDTH, 2, dropout=0.1) if kind == "heads" else nn.Identity()
        if kind == "half":
            self.middle.half()
        if kind == "fixed":
            self.middle.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor, y: Tensor) -> object:
        """The sum of the losses of the items, in one form or another."""
        hidden = self.middle(torch.relu(self.first(x)))
        match self.kind:
            case "random":
                hidden = hidden + torch.rand_like(hidden)
            case "dropout":
                hidden = nn.functional.dropout(self.drop(hidden), 0.5)
                hidden = nn.functional.dropout1d(hidden.view(1, ITEMS, WIDTH), 0.3).view(ITEMS, WIDTH)
                hidden = nn.functional.dropout1d(hidden, 0.2) * 2
                nn.functional.dropout(hidden, 0.4, inplace=True)
            case "share":
                hidden = nn.functional.dropout(hidden, 1.5)
            case "alpha":
                hidden = nn.functional.alpha_dropout(hidden, 0.5, training=True)
            case "attention":
                heads = hidden.view(1, ITEMS, WIDTH // 2, 2).transpose(1, 2)
                some = heads[:, :1]
                mask = torch.tensor([[0.0, 1.0, -2.0]])
                seen = torch.tensor([[False, False, False], [True, True, True], [True, False, True]])
                hidden = nn.functional.scaled_dot_product_attention(heads, heads, heads, seen, 0.4)
                hidden = hidden + nn.functional.scaled_dot_product_attention(heads, some, some, mask, 0.3, scale=0.5)
                hidden = hidden + nn.functional.scaled_dot_product_attention(
                    heads, some, some, None, 0.2, True, enable_gqa=True
                )
                hidden = hidden.transpose(1, 2).reshape(ITEMS, WIDTH)
            case "norms":
                hidden = nn.functional.group_norm(hidden, 2, self.first.bias, self.middle.bias)
                hidden = nn.functional.layer_norm(hidden, (WIDTH,), self.last.bias, self.middle.bias)
            case "einsum":
                hidden = torch.einsum("ij,kj->ik", hidden, self.last.weight)
                hidden = hidden + torch.tensordot(x, self.middle.weight, 1)
                hidden = hidden + torch.tensordot(x, self.middle.weight, ([1], [1]))
            case "recurrent":
                row = hidden.unsqueeze(0)
                hidden = torch.stack([layer(row)[0].squeeze(0) for layer in self.layers]).sum(dim=0)
                hidden = self.cell(hidden)[0] + torch.stack([cell(hidden) for cell in self.cells]).sum(dim=0)
            case "copied":
                hidden = hidden * torch.empty_like(hidden).copy_(self.last.bias)
            case "heads":
                hidden = self.heads(hidden, hidden, hidden)[0]
            case "buffer":
                self.running.add_(hidden.detach().mean(dim=0))
            case "branch":
                hidden = hidden * 2 if bool(hidden.sum() > 0) else hidden
            case "shared":
                hidden = self.first(hidden)
            case "sparse":
                hidden = hidden + nn.functional.embedding(y, self.head.weight, sparse=True)
            case "long":  # a long chain of what depends on the batch alone
                mask = x
                for _ in range(1200):
                    mask = mask + 1.0
                hidden = hidden * mask
            case "no_grad":
                with torch.no_grad(), torch.autocast("cpu", enabled=False):
                    scale = hidden * 2
                hidden = hidden * scale + hidden.detach()
            case "lost":  # torch.export forgets that there is no gradient
                with torch.autocast("cpu", enabled=False), torch.no_grad():
                    scale = hidden * 2
                hidden = hidden * scale
            case "in_place":
                hidden = nn.functional.hardtanh(hidden * 1.5, inplace=True)
                hidden = hidden * 2
                hidden[:, 0] = 0.0
            case "integers":
                hidden = self.last(hidden) * hidden.argmax(dim=1, keepdim=True)
        losses = nn.functional.cross_entropy(self.head(self.last(hidden)), y, reduction="none")
        match self.kind:
            case "squares":
                return self.last(hidden).square().sum()
            case "no loss":
                return losses
            case "tuple":
                return losses.sum(), hidden
        return {"loss": losses.sum()}


def odd(kind: str) -> nn.Module:
    """A network with one property that matters to stages."""
    return Odd(kind)


class Deep(nn.Module):
    """Many layers, with a softmax of what is infinite in each."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum of the losses of the items."""
        hidden, left = x, torch.eye(ITEMS, WIDTH).bool()
        for layer in self.layers:
            hidden = hidden + layer(hidden).masked_fill(left, -torch.inf).softmax(1)
        return nn.functional.cross_entropy(hidden, y, reduction="sum")


def deep(layers: int) -> nn.Module:
    """A network of many layers."""
    return Deep(layers)


class Skipping(nn.Module):
    """Three layers, of which the last one takes what the first one gives too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum of the losses of the items."""
        early = self.first(x)
        late = self.middle(early)
        return nn.functional.cross_entropy(self.last(late) * early, y, reduction="sum")


def skipping() -> nn.Module:
    """A network with a skip connection."""
    return Skipping()


def no_module() -> str:
    """What is no module."""
    return "no module"


class Wrapped(nn.Module):
    """A model of transformers, whose loss is a mean."""

    def __init__(self, model: nn.Module, count: int) -> None:
        super().__init__()
        self.model = model
        self.count = count

    def forward(self, **batch: Tensor) -> Tensor:
        """The sum of the losses of the items."""
        loss: Tensor = self.model(**batch).loss
        return loss * self.count


def of_transformers(kind: str, items: int = ITEMS) -> nn.Module:
    """A tiny model of transformers that is no decoder. items: of a microbatch."""
    from transformers import (
        ResNetConfig,
        ResNetForImageClassification,
        T5Config,
        T5ForConditionalGeneration,
        ViTConfig,
        ViTForImageClassification,
    )

    sizes: dict[str, Any]
    if kind in ("resnet", "resnet-18"):
        sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
        if kind == "resnet-18":  # narrower than He et al.'s
            sizes |= {"hidden_sizes": [8, 8, 16, 16], "depths": [2, 2, 2, 2]}
        sizes["num_labels"] = CLASSES
        return Wrapped(ResNetForImageClassification(ResNetConfig(**sizes)), items)
    if kind == "vit":
        sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
        sizes |= {"image_size": 16, "patch_size": 8, "num_labels": CLASSES}
        return Wrapped(ViTForImageClassification(ViTConfig(**sizes)), items)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 64}
    sizes |= {"decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu"}  # a rounding error can switch a ReLU
    return Wrapped(T5ForConditionalGeneration(T5Config(**sizes)), items * 6)
