"""The experiment on adaptive compression: what crosses the boundaries, and what is compared."""

from __future__ import annotations

import pytest
import torch

from experiments.adaptive_topk.__main__ import ADAPTIVE, ALL_BYTES, SLOWEST_BYTES, rows
from experiments.boundaries.__main__ import RATIO

TOKENS = torch.frombuffer(bytearray(b"to be, or not to be, that is the question: " * 20), dtype=torch.uint8)


def test_the_slowest_boundary_carries_a_fiftieth_and_the_others_more() -> None:
    found = {(each.policy, each.metric): each.mean for each in rows(TOKENS, range(1), 2, (128,))}
    assert found[ADAPTIVE, SLOWEST_BYTES] == found["top-k, all alike", SLOWEST_BYTES] <= 1 / 50
    assert found["top-k, all alike", ALL_BYTES] == pytest.approx(found["top-k, all alike", SLOWEST_BYTES])
    assert found[ADAPTIVE, ALL_BYTES] > 5 * found[ADAPTIVE, SLOWEST_BYTES]
    assert found[ADAPTIVE, RATIO] != found["top-k, all alike", RATIO]
