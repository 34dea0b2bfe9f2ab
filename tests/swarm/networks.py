"""Networks of the tests of modules, and what makes their batches; peers import this package too."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 5


class TwoBranches(nn.Module):
    """Two branches of the same input, one of them a skip over all of the other, with batch normalisation."""

    scale: Tensor

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.enter = nn.Linear(8, width)
        self.left = nn.Sequential(nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.GELU())
        self.back = nn.Linear(2 * width, width)
        self.right = nn.Linear(width, width)
        self.leave = nn.Linear(2 * width, CLASSES)
        self.register_buffer("scale", torch.full((width,), 0.5))

    def forward(self, features: Tensor, label: Tensor) -> dict[str, Tensor]:
        """The sum of the losses of the items."""
        entered = torch.relu(self.enter(features))
        left = self.back(nn.functional.dropout(self.left(entered), self.dropout))
        right = torch.tanh(self.right(entered)) * self.scale
        logits = self.leave(torch.cat([left + entered, right], dim=1)) + features[:, :CLASSES]
        return {"loss": nn.functional.cross_entropy(logits, label, reduction="sum")}


def two_branches(width: int = 16, dropout: float = 0.0) -> nn.Module:
    """A network of two branches, one with a dropout."""
    return TwoBranches(width, dropout)


def collate(records: list[dict[str, Any]]) -> dict[str, Tensor]:
    """The features and labels of some records."""
    features = torch.tensor([record["features"] for record in records], dtype=torch.float32)
    return {"features": features, "label": torch.tensor([record["label"] for record in records])}


def collate_images(records: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Square images in three colours, and their labels."""
    pixels = torch.tensor([record["pixels"] for record in records], dtype=torch.float32)
    labels = torch.tensor([record["label"] for record in records])
    side = math.isqrt(pixels.shape[1] // 3)
    return {"pixel_values": pixels.view(-1, 3, side, side) / 255.0, "labels": labels}


def collate_sentences(records: list[dict[str, Any]]) -> dict[str, Tensor]:
    """The words that an encoder reads, some of them not, and those that a decoder writes."""
    words = torch.tensor([record["words"] for record in records])
    read = words[:, :8]
    return {"input_ids": read, "attention_mask": (read % 7 > 0).long(), "labels": words[:, 8:].contiguous()}
