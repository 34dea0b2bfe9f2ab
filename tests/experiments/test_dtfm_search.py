"""DT-FM's Figure 4: each search has its row, and none gets worse from one generation to the next."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from experiments.dtfm_cases.cases import CASES
from experiments.dtfm_search.__main__ import AFTER, PLACES, RANDOM, READINGS, SEARCHES, costs, rows
from swarmflow.planning.arrangement import Group, swapped
from swarmflow.planning.dtfm import GENERATIONS, GeneticSearch, LocalSearch
from tests.planning.instances import problem

CASE = CASES[-1].thinned(4)


def test_every_search_gets_better_with_the_generations_and_none_is_below_the_bound() -> None:
    found = costs(CASE, 0, 1, READINGS[:1])
    assert {name for _, name in found} == {*SEARCHES, RANDOM, PLACES}
    for [by_generation] in found.values():
        assert len(by_generation) == GENERATIONS + 1
        assert by_generation == sorted(by_generation, reverse=True)
        assert by_generation[-1] >= 1.0 - 1e-9
    assert len(list(rows(found, CASE))) == len(found) * len(AFTER)


@pytest.mark.parametrize("seed", range(3))
def test_kernighan_and_lins_gain_is_what_a_swap_takes_from_the_times_within_groups(seed: int) -> None:
    given = problem(3, 3, seed)

    def within_s(groups: tuple[Group, ...]) -> float:
        return sum(float(given.transfer_s[pair]) for group in groups for pair in combinations(group, 2))

    search = GeneticSearch(given, Random(seed), LocalSearch.KERNIGHAN_LIN)
    groups = given.filled(Random(seed).sample(range(9), 9))
    gains = {(one, other): gain for gain, one, other in search._gains(groups)}
    assert len(gains) == 27, "every two devices of different groups"
    for pair, gain in gains.items():
        assert gain == pytest.approx(within_s(groups) - within_s(swapped(groups, *pair)))
