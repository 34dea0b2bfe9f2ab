"""Small choices of stages for devices, and the least that they can cost by trying everything."""

from __future__ import annotations

from itertools import pairwise, permutations
from random import Random

import numpy as np

from swarmflow.planning.arrangement import Problem


def problem(pipelines: int, stages: int, seed: int, spare: int = 0, pinned: dict[int, int] | None = None) -> Problem:
    """Return devices with links drawn alike; any may be far from any other."""
    count = pipelines * stages + spare
    random = Random(seed)
    latency_s = [[0.0 if a == b else random.uniform(0.005, 0.125) for b in range(count)] for a in range(count)]
    rates = [[random.uniform(6e6, 6e7) for _ in range(count)] for _ in range(count)]
    return Problem(latency_s, rates, pipelines, stages, 1e8, [1e8] * stages, pinned or {})


def cheapest(given: Problem) -> float:
    """By trying every order of the devices, straight from the paper's equations."""
    count, pipelines = len(given.latency_s), given.pipelines
    latency_s, rate = np.array(given.latency_s), np.array(given.bytes_per_s)
    latency_s, rate = (latency_s + latency_s.T) / 2, (rate + rate.T) / 2
    best = float("inf")
    for order in permutations(range(count), pipelines * given.stages):
        groups = [order[stage * pipelines : (stage + 1) * pipelines] for stage in range(given.stages)]
        if any(d in given.pinned and given.pinned[d] != s for s, group in enumerate(groups) for d in group):
            continue
        if any(d not in order for d in given.pinned) or any(list(g) != sorted(g) for g in groups):
            continue
        shared = max(
            sum(2 * (latency_s[d, e] + given.gradient_bytes[s] / (pipelines * rate[d, e])) for e in group if e != d)
            for s, group in enumerate(groups)
            for d in group
        )
        transfer_s = 0.0
        for one, other in pairwise(groups):
            transfer_s += min(
                max(2 * (latency_s[d, e] + 1e8 / rate[d, e]) for d, e in zip(one, turned, strict=True))
                for turned in permutations(other)
            )
        best = min(best, shared + transfer_s)
    return best


def in_places(
    pipelines: int, stages: int, place: list[int], seed: int, activation_bytes: float, gradient_bytes: float
) -> Problem:
    """Return devices in so many places: near within one, between two by a link that is drawn."""
    random, count = Random(seed), max(place) + 1
    between_s = [[random.uniform(0.02, 0.2) for _ in range(count)] for _ in range(count)]
    rates = [[random.uniform(1e6, 1e7) for _ in range(count)] for _ in range(count)]
    return Problem(
        [[0.001 if a == b else between_s[a][b] for b in place] for a in place],
        [[1e8 if a == b else rates[a][b] for b in place] for a in place],
        pipelines,
        stages,
        activation_bytes,
        [gradient_bytes] * stages,
    )
