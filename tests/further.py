"""Values of parameters: some that every run of the tests tries, and more that `make test-exhaustive` tries too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def seeds(usual: int, further: int, first: int = 0) -> list[object]:
    """So many seeds that each run of the tests tries, and more that `make test-exhaustive` tries too."""
    return [*range(first, first + usual), *more(*range(first + usual, first + usual + further))]


def found(every: Sequence[int], usual: int) -> list[object]:
    """Seeds that have found something: each run of the tests tries the last ones, `make test-exhaustive` all."""
    return [*every[-usual:], *more(*every[:-usual])]


def more(*values: object) -> list[object]:
    """Values of a parameter that `make test-exhaustive` alone tries."""
    return [pytest.param(value, marks=pytest.mark.exhaustive) for value in values]


def more_of(*rows: tuple[object, ...]) -> list[object]:
    """Values of several parameters that `make test-exhaustive` alone tries."""
    return [pytest.param(*row, marks=pytest.mark.exhaustive) for row in rows]
