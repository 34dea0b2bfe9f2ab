"""What a swarm under attack should have learnt at a version: what a plain loop has, which goes as far as asked.

The loop takes the sequences of a step in one batch: the same gradient as from microbatches, but for rounding, and less
work. A second loop with two microbatches shows what rounding does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from swarmflow.chaos.compare import Comparison, compare_within, order_limits
from swarmflow.chaos.plain import Recipe, load_model, parameters, versions


class Reference:
    """The plain loop, and one that adds up in another order."""

    def __init__(self, model: Path, corpus: Path, recipe: Recipe) -> None:
        self._at = 0
        self._loops = [versions(model, corpus, _in(recipe, count), reverse=True) for count in (1, 2)]

    def compare(self, export: Path) -> Comparison:
        """Compare an exported version, `step-N`, with the plain loop; it is later than all that were compared."""
        version = int(export.name.removeprefix("step-"))
        wanted, reordered = (_later(loop, version - self._at) for loop in self._loops)
        self._at = version
        found = parameters(load_model(export))
        return compare_within(found, wanted, order_limits(wanted, reordered), "one plain process")


def _in(recipe: Recipe, microbatches: int) -> Recipe:
    """Return the recipe with the same sequences of each step in another number of microbatches."""
    sequences = recipe.microbatches * recipe.sequences // microbatches
    return replace(recipe, microbatches=microbatches, sequences=sequences)


def _later(loop: Iterator[dict[str, Tensor]], steps: int) -> dict[str, Tensor]:
    return next(itertools.islice(loop, steps - 1, None))
