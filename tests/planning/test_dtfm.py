"""DT-FM's scheduler against every arrangement there is, on instances small enough for that."""

from __future__ import annotations

from itertools import permutations
from random import Random

import numpy as np
import pytest

from swarmflow.errors import ConfigError
from swarmflow.planning import dtfm
from swarmflow.planning.arrangement import Problem
from swarmflow.planning.dtfm import arrange
from swarmflow.planning.matching import matching
from tests.planning.instances import cheapest, problem


@pytest.mark.parametrize(
    ("pipelines", "stages", "spare", "pinned"),
    [(1, 4, 0, None), (2, 3, 0, None), (2, 3, 1, None), (2, 3, 0, {0: 0, 3: 0}), (3, 2, 0, {4: 1}), (2, 4, 0, {1: 2})],
)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_cheaper(
    pipelines: int, stages: int, spare: int, pinned: dict[int, int] | None, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = problem(pipelines, stages, seed, spare, pinned)
    least = cheapest(given)
    tried = arrange(given, Random(seed))
    assert tried.cost_s == pytest.approx(least)
    monkeypatch.setattr(dtfm, "ENUMERATED_MAX", 0)
    evolved = arrange(problem(pipelines, stages, seed, spare, pinned), Random(seed))
    assert evolved.cost_s == pytest.approx(least)
    for found in (tried, evolved):
        devices = [device for pipeline in found.pipelines for device in pipeline]
        assert len(set(devices)) == pipelines * stages
        assert all(
            pipeline[stage] == device
            for device, stage in (pinned or {}).items()
            for pipeline in found.pipelines
            if device in pipeline
        )


def test_what_is_kept_of_machines_in_one_place_is_what_there_is() -> None:
    place, random = [0, 1, 0, 2, 1, 0], Random(4)
    between_s = [[random.uniform(0.005, 0.125) for _ in range(3)] for _ in range(3)]
    latency_s = [[0.0 if a == b else between_s[place[a]][place[b]] for b in range(6)] for a in range(6)]
    given = Problem(latency_s, [[1e7] * 6] * 6, 2, 3, 1e8, [1e8] * 3)
    for order in permutations(range(6), 4):
        one, other = order[:2], order[2:]
        slowest = [
            max(given.transfer_s[a, b] for a, b in zip(one, turned, strict=True)) for turned in permutations(other)
        ]
        assert given.matched_s(one, other) == min(slowest)


def test_the_search_is_close_to_the_best_of_many_random_ones_and_repeats_itself() -> None:
    given = problem(3, 4, 5, pinned={0: 0, 1: 0, 2: 0})
    found = arrange(given, Random(1))
    assert found == arrange(problem(3, 4, 5, pinned={0: 0, 1: 0, 2: 0}), Random(1))
    random, costs = Random(2), []
    for _ in range(1000):
        others = list(range(3, 12))
        random.shuffle(others)
        groups = [(0, 1, 2), *(tuple(sorted(others[3 * n : 3 * n + 3])) for n in range(3))]
        costs.append(given.cost_s(groups))
    assert found.cost_s <= min(costs)
    assert sorted(pipeline[0] for pipeline in found.pipelines) == [0, 1, 2]


@pytest.mark.parametrize("count", [2, 5, 6])
def test_a_matching_has_the_smallest_largest_way(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = np.array([[Random(a * 31 + b).random() for b in range(count)] for a in range(count)])
    least = min(max(costs[row, column] for row, column in enumerate(p)) for p in permutations(range(count)))
    monkeypatch.setattr("swarmflow.planning.matching.PERMUTED_MAX", 0)
    chosen = matching(costs)
    assert sorted(chosen) == list(range(count))
    assert max(costs[row, column] for row, column in enumerate(chosen)) == least


@pytest.mark.parametrize("gradient_bytes", [[1e6, 1e9, 0.0], [0.0, 1e7, 1e8]])
@pytest.mark.parametrize("seed", range(3))
def test_where_gradients_have_unlike_sizes_each_order_is_tried(gradient_bytes: list[float], seed: int) -> None:
    like = problem(2, 3, seed)
    given = Problem(like.latency_s, like.bytes_per_s, 2, 3, 1e5, gradient_bytes)
    least = min(
        given.cost_s([tuple(sorted(order[:2])), tuple(sorted(order[2:4])), tuple(sorted(order[4:]))])
        for order in permutations(range(6))
    )
    assert arrange(given, Random(0)).cost_s == pytest.approx(least)


def test_with_spare_devices_each_partition_is_tried_once() -> None:
    given = problem(1, 6, 3, spare=5)
    arrange(given, Random(0))
    assert given.evaluated == 462  # 11 over 6


def test_what_cannot_be_arranged_is_refused() -> None:
    like = problem(2, 2, 0, spare=1)
    with pytest.raises(ConfigError, match="2 pipelines of 2 stages lack 1 peers: more ask for a stage than it takes"):
        Problem(like.latency_s, like.bytes_per_s, 2, 2, 1.0, [1.0] * 2, dict.fromkeys(range(4), 0))
    rates = [[0.0] * 4 if here == 2 else [0.0 if there == 2 else 1e6 for there in range(4)] for here in range(4)]
    with pytest.raises(ConfigError, match="every two peers need a link"):
        Problem([[0.1] * 4] * 4, rates, 2, 2, 1.0, [1.0] * 2)


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 stages need at least as many peers, not 2"):
        Problem([[0.0] * 2] * 2, [[1.0] * 2] * 2, 0, 3, 1.0, [1.0] * 3)
