"""DT-FM's Figure 5: the arithmetic of ZeRO-S3, beside sums by hand."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest

from experiments.dtfm_cases.cases import CASES, Model
from experiments.dtfm_zero.costs import hop_s, zero

LAYER_BYTES = 12 * 2048**2 * 2


def test_a_step_of_a_ring_takes_as_long_as_its_slowest_link() -> None:
    part = LAYER_BYTES / 64
    assert hop_s(CASES[0], part) == pytest.approx(part / (25e9 / 8)), "between nodes; within one it is faster"
    assert hop_s(CASES[1], part) == pytest.approx(part / (10e9 / 8))
    assert hop_s(CASES[2], part) == pytest.approx(0.010 + part / (1.12e9 / 8)), "both links between the two places"


def test_the_ring_of_the_states_is_the_best_one() -> None:
    latency_s, mbps = CASES[3].links
    part = LAYER_BYTES / 64
    slowest = (
        max(latency_s[a][b] + part * 8e-6 / mbps[a][b] for a, b in pairwise((*order, order[0])))
        for order in permutations(range(4))
    )
    assert hop_s(CASES[3], part) == pytest.approx(min(slowest))


def test_three_collectives_a_layer_for_each_gathering() -> None:
    once, each = (zero(CASES[0], Model(), sequences) for sequences in (16, 1))
    assert once.communication_s == pytest.approx(24 * 3 * 63 * (LAYER_BYTES / 64) / (25e9 / 8))
    assert (once.gatherings, each.gatherings) == (1, 16)
    assert each.communication_s == pytest.approx(16 * once.communication_s)
    assert once.compute_s == each.compute_s == pytest.approx((721.6e9 + 2164.7e9) * 8 * 1024 / 64 / 62.5e12)
    assert once.overlapped_s == max(once.communication_s, once.compute_s)
    assert once.alternating_s == once.communication_s + once.compute_s
