"""The experiment on learnt boundaries: what it compares is alike but for what crosses them."""

from __future__ import annotations

import pytest
import torch

from experiments.boundaries.__main__ import BYTES, CASES, CUTS, LOSS, RATIO, WHOLE, rows
from experiments.boundaries.training import Crossing, train

TOKENS = torch.frombuffer(bytearray(b"to be, or not to be, that is the question: " * 20), dtype=torch.uint8)
STEPS = 2


def test_the_cut_alone_changes_nothing_and_each_boundary_does() -> None:
    two, four = (train(TOKENS, cut, Crossing(), 0, STEPS) for cut in CUTS.values())
    assert two == pytest.approx(four, rel=1e-5)
    assert two[-1] < two[0]
    others = [train(TOKENS, CUTS["2 stages"], crossing, 0, STEPS) for _, crossing, _ in CASES[:3]]
    assert len({tuple(each) for each in [two, *others]}) == 4


def test_the_rows_have_each_case_beside_the_paper() -> None:
    found = {(each.policy, each.metric): each for each in rows(TOKENS, range(1), STEPS, ("4 stages",), CASES[3:5])}
    assert found["bottleneck, a quarter", BYTES].mean == found["maxout, a quarter", BYTES].mean == 0.25
    assert found["bottleneck, a quarter", RATIO].paper == pytest.approx(1.1286, rel=1e-3)
    for name, *_ in CASES[3:5]:
        ratio = found[name, LOSS].mean / found[WHOLE, LOSS].mean
        assert found[name, RATIO].mean == pytest.approx(ratio)
