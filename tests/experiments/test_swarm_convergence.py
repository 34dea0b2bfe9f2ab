"""The experiment on convergence: the stages learn what the plain loop learns, and each manner is another one."""

from __future__ import annotations

import pytest
import torch

from experiments.swarm_convergence.__main__ import APART, LOSS, MANNERS, ONE, RATIO, SETTINGS, curves, rows
from experiments.swarm_convergence.training import Manner, in_stages, one_process

TOKENS = torch.frombuffer(bytearray(b"to be, or not to be, that is the question: " * 20), dtype=torch.uint8)
STEPS = 3


@pytest.mark.parametrize("shared", SETTINGS.values())
def test_stages_learn_what_the_plain_loop_learns(shared: int | None) -> None:
    plain = one_process(TOKENS, shared, 0, STEPS)
    assert in_stages(TOKENS, shared, Manner(), 0, STEPS) == pytest.approx(plain, rel=1e-5)
    assert plain[-1] < plain[0]


def test_a_late_update_is_seen_a_step_later_and_the_others_are_near() -> None:
    plain = in_stages(TOKENS, 3, Manner(), 0, STEPS)
    found = {name: in_stages(TOKENS, 3, manner, 0, STEPS) for name, manner in MANNERS.items()}
    assert len({tuple(losses) for losses in found.values()}) == len(MANNERS)
    eight, moments = found["3 stages, 8 bits"], found["3 stages, 8 bits, state of 8 bits"]
    assert eight == pytest.approx(plain, rel=1e-2)
    assert moments[:2] == eight[:2], "the first moments are exact: all of a block are 0 before"
    late = found["3 stages, 8 bits, delayed"]
    assert late[0] == eight[0]
    assert late[1] > eight[1], "the second step has the first parameters still"


def test_the_rows_are_beside_one_process() -> None:
    of = curves(TOKENS, range(2), 2, tuple(SETTINGS), {"a": Manner()})
    found = {(each.setting, each.policy, each.metric): each for each in rows(of)}
    for setting in SETTINGS:
        assert found[setting, "a", RATIO].mean == pytest.approx(1.0, rel=1e-5)
        assert found[setting, "a", APART].mean < 1e-4
        assert found[setting, ONE, LOSS].n == 2
