"""Exchanges of two devices, beside the cost of the whole arrangement after each."""

from __future__ import annotations

from random import Random

import pytest

from swarmflow.planning.arrangement import swapped
from swarmflow.planning.swap_costs import SwapCosts
from tests.planning.instances import problem


@pytest.mark.parametrize("seed", range(5))
def test_an_exchange_is_made_where_the_whole_costs_less(seed: int) -> None:
    random, given, other = Random(seed), problem(3, 4, seed, 2), problem(3, 4, seed, 2)
    devices = given.free
    random.shuffle(devices)
    groups = given.filled(devices)
    costs, cost_s, made = SwapCosts(given, groups), other.cost_s(groups), 0
    for _ in range(300):
        one, two = random.sample(devices, 2)
        changed = swapped(groups, one, two)
        less_s = other.cost_s(changed) if changed != groups else cost_s
        assert costs.swap(one, two) == (less_s < cost_s)
        if less_s < cost_s:
            groups, cost_s, made = changed, less_s, made + 1
        assert (costs.groups, costs.cost_s) == (groups, cost_s)
    assert made > 3
    assert given.evaluated == other.evaluated, "each exchange that changes something counts, whatever is computed of it"
