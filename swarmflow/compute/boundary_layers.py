"""The layers that compress at a boundary between two stages: SWARM (Ryabinin et al.), appendix J.1.

The stage before it computes LayerNorm and a projection to W numbers a token (bottleneck) or the largest of each k
neighbouring features (maxout); this travels, and the stage after it computes LayerNorm and a projection back to H.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from swarmflow.boundary import Boundary
from swarmflow.compute.dropout import seed_of
from swarmflow.errors import ModelError

NAME = "boundary"  # of all halves in the whole model


class CompressingHalf(nn.Module):
    """The layers before a boundary: hidden [B, T, H] -> [B, T, W]."""

    def __init__(self, boundary: Boundary, hidden_size: int) -> None:
        super().__init__()
        self._window = boundary.number if boundary.kind == "maxout" else 0
        self.norm = nn.LayerNorm(hidden_size)
        if not self._window:
            self.weight = nn.Parameter(torch.empty(boundary.width(hidden_size), hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        if self._window:
            windows: Tensor = normed.unflatten(-1, (-1, self._window))
            return windows.amax(-1)
        return nn.functional.linear(normed, self.weight)


class ExpandingHalf(nn.Module):
    """The layers after a boundary: [B, T, W] -> hidden [B, T, H]."""

    def __init__(self, boundary: Boundary, hidden_size: int) -> None:
        super().__init__()
        width = boundary.width(hidden_size)
        self.norm = nn.LayerNorm(width)
        self.weight = nn.Parameter(torch.empty(hidden_size, width))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.norm(x), self.weight)


def is_of_boundary(name: str) -> bool:
    """Return whether a parameter of this full name in the whole model belongs to a half."""
    return name.startswith(f"{NAME}.")


def halves_of(boundary: Boundary | None, hidden_size: int, stage: int, stages: int) -> dict[str, nn.Module]:
    """Return the halves that a stage holds, on the meta device: full name -> module, in the order of a token.

    A boundary has the number of the stage after it. Raises ModelError for a boundary that this hidden size excludes.
    """
    if boundary is None:
        return {}
    if problem := boundary.problem(hidden_size):
        raise ModelError(f'model.boundary = "{boundary}": {problem}')
    halves: dict[str, nn.Module] = {}
    with torch.device("meta"):
        if stage > 0:
            halves[f"{NAME}.{stage}.expand"] = ExpandingHalf(boundary, hidden_size)
        if stage < stages - 1:
            halves[f"{NAME}.{stage + 1}.compress"] = CompressingHalf(boundary, hidden_size)
    return halves


def attach(model: nn.Module, halves: dict[str, nn.Module]) -> None:
    """Put the halves into the whole model, under their names."""
    if halves:
        tree = nn.ModuleDict()
        for name, half in halves.items():
            _, number, part = name.split(".")
            tree[number] = nn.ModuleDict({part: half})
        model.add_module(NAME, tree)


def new_values(boundary: Boundary, name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return the first values of a parameter of a half, fp32, the same bits on every machine.

    Norms begin as ones and zeros. A bottleneck begins as a projection whose rows are orthogonal and of length 1, and
    H/W times its transpose: the mean over all such projections is the identity. With a maxout each number returns to
    all features of its window.
    """
    half, _, leaf = name.rpartition(".")
    if len(shape) == 1:
        return torch.full(shape, float(leaf == "weight"))
    width, hidden_size = min(shape), max(shape)
    if boundary.kind == "maxout":
        return torch.eye(width).repeat_interleave(hidden_size // width, dim=0)
    _, number, part = half.split(".")
    projection = _signed_sums(width, hidden_size, seed_of(seed, f"{NAME}.{number}"))
    return projection if part == "compress" else projection.T.contiguous() * (hidden_size / width)


def _signed_sums(width: int, hidden_size: int, seed: int) -> Tensor:
    """Return a matrix [W, H] of W signed sums of features, divided by their length; each feature is in one of them."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    order = torch.randperm(hidden_size, generator=generator)
    signs = torch.randint(2, (hidden_size,), generator=generator) * 2.0 - 1.0
    rows = torch.arange(hidden_size) % width
    lengths = torch.bincount(rows, minlength=width).sqrt()
    projection = torch.zeros(width, hidden_size)
    projection[rows, order] = signs / lengths[rows]
    return projection
