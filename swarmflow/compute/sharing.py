"""Blocks that share their weights, as in ALBERT (Lan et al., 2020) and in SWARM's model of section 4.3."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from torch import nn
from transformers import PreTrainedConfig

from swarmflow.errors import ModelError

# In a run's model configuration, beside the keys of its family: the number of groups. It is not in files that others
# read: there each block has its weights.
SHARED_BLOCKS: Final = "shared_blocks"


def shared_groups(config: PreTrainedConfig, blocks: int) -> tuple[range, ...]:
    """Return the groups of neighbouring blocks that share their weights; empty: none do.

    Their sizes differ by one at most, and larger ones come first. Raises ModelError when there are more groups than
    blocks.
    """
    count = getattr(config, SHARED_BLOCKS, None)
    if count is None:
        return ()
    if not isinstance(count, int) or not 1 <= count <= blocks:
        raise ModelError(f"model.shared_blocks = {count}: the model has {blocks} blocks; allowed: 1 to {blocks}")
    size, larger = divmod(blocks, count)
    edges = [group * size + min(group, larger) for group in range(count + 1)]
    return tuple(itertools.starmap(range, itertools.pairwise(edges)))


def with_sharing(config: Mapping[str, Any], shared_blocks: int | None) -> dict[str, Any]:
    """Return a model's configuration in which so many groups of blocks share their weights; None: no blocks do."""
    own = {key: value for key, value in config.items() if key != SHARED_BLOCKS}
    return own if shared_blocks is None else {**own, SHARED_BLOCKS: shared_blocks}


def why_unlike(config: PreTrainedConfig, blocks: nn.ModuleList, groups: tuple[range, ...]) -> str | None:
    """Return why blocks of a group cannot share their weights: they are of several kinds. None: they can."""
    for group in groups:
        first, *others = group
        for key, value in vars(config).items():
            if isinstance(value, list) and len(value) == len(blocks):
                other = next((block for block in others if value[block] != value[first]), None)
                if other is not None:
                    return _unlike(first, other, f"{key} has {value[first]!r} and {value[other]!r}")
        kind = _kind(blocks[first])
        other = next((block for block in others if _kind(blocks[block]) != kind), None)
        if other is not None:
            return _unlike(first, other, "their parameters or modules differ")
    return None


def _unlike(first: int, other: int, reason: str) -> str:
    return f"blocks {first} and {other} would share their weights, but {reason}; leave model.shared_blocks out"


def _kind(block: nn.Module) -> list[tuple[object, ...]]:
    """Return what the modules of a block are, and the shapes of its parameters."""
    modules: list[tuple[object, ...]] = [(name, type(module)) for name, module in block.named_modules()]
    return [*modules, *((name, tuple(parameter.shape)) for name, parameter in block.named_parameters())]
