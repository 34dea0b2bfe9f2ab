"""The order of groups in a pipeline against all orders there are."""

from __future__ import annotations

from itertools import pairwise, permutations
from random import Random

import numpy as np
import pytest

from swarmflow.planning.stage_order import EXACT_MAX, Matrix, order_of


def links(count: int, seed: int) -> Matrix:
    drawn = np.random.default_rng(seed).uniform(1.0, 2.0, (count, count))
    return drawn + drawn.T


def path_s(links_s: Matrix, order: tuple[int, ...]) -> float:
    return float(sum(links_s[a, b] for a, b in pairwise(order)))


@pytest.mark.parametrize("fixed", [{}, {2: 0}, {0: 3, 4: 4}])
@pytest.mark.parametrize("seed", range(5))
def test_no_order_is_shorter(fixed: dict[int, int], seed: int) -> None:
    links_s = links(6, seed)
    allowed = [p for p in permutations(range(6)) if all(p[place] == group for group, place in fixed.items())]
    found = order_of(links_s, fixed)
    assert found in allowed
    assert path_s(links_s, found) == pytest.approx(min(path_s(links_s, order) for order in allowed))


def test_one_group_has_one_order() -> None:
    assert order_of(links(1, 0)) == (0,)


def test_of_many_groups_on_a_line_the_shortest_path_is_found() -> None:
    count, random = EXACT_MAX + 8, Random(1)
    at = list(range(count))  # on a line, a step apart
    random.shuffle(at)
    links_s = np.array([[float(abs(a - b)) for b in at] for a in at])
    found = order_of(links_s)
    assert sorted(found) == list(range(count))
    assert path_s(links_s, found) == count - 1
    assert order_of(links_s, {0: 0}) == tuple(range(count))
