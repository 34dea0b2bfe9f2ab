"""Seconds of compute are settled once each: used when a commit holds them, unused when none ever will."""

from __future__ import annotations

from collections import Counter

from swarmflow.core.protocol.types import Epoch, Microbatch
from swarmflow.runtime.execution.account import Account

ONE, OTHER = (Microbatch(Epoch(0, 3), index) for index in (0, 1))


def account() -> tuple[Account, Counter[str]]:
    settled: Counter[str] = Counter()

    def settle(outcome: str, seconds: float) -> None:
        settled[outcome] += seconds  # type: ignore[assignment]  # Counter's values may be any number

    return Account(settle), settled


def test_what_was_accumulated_is_used_at_the_commit() -> None:
    work, settled = account()
    work.spent(ONE, "forward", 1.0)
    work.spent(ONE, "backward", 2.0)
    work.spent(OTHER, "loss", 4.0)
    assert settled == {}
    work.committed(ONE.epoch)
    assert settled == {"used": 7.0}


def test_a_forward_that_got_no_backward_is_of_no_use() -> None:
    work, settled = account()
    work.spent(ONE, "forward", 1.0)
    work.committed(ONE.epoch)
    assert settled == {"unused": 1.0}


def test_what_is_computed_twice_is_used_once() -> None:
    work, settled = account()
    work.spent(ONE, "forward", 1.0)
    work.spent(ONE, "forward", 2.0)
    work.spent(ONE, "backward", 4.0)
    work.committed(ONE.epoch)
    assert settled == {"used": 6.0, "unused": 1.0}


def test_what_is_undone_is_of_no_use_nor_is_the_undoing() -> None:
    work, settled = account()
    work.spent(ONE, "forward", 1.0)
    work.spent(ONE, "backward", 2.0)
    work.spent(ONE, "undo", 4.0)
    assert settled == {"unused": 7.0}


def test_a_forward_pass_whose_graph_is_not_kept_is_done_twice_and_not_in_vain() -> None:
    work, settled = account()
    work.spent(ONE, "forward", 1.0)
    work.spent(ONE, "replay", 4.0)
    work.committed(ONE.epoch)
    assert settled == {"twice": 1.0, "used": 4.0}


def test_a_step_that_starts_over_leaves_nothing_open() -> None:
    work, settled = account()
    work.spent(ONE, "loss", 1.0)
    work.void()
    work.wasted(2.0)
    work.committed(ONE.epoch)
    assert settled["unused"] == 3.0
    assert settled["used"] == 0.0


def test_what_is_recomputed_for_others_is_in_vain_and_leaves_the_hop_alone() -> None:
    work, settled = account()
    work.spent(ONE, "forward", 1.0)
    work.spent(ONE, "backward", 2.0)
    work.spent(ONE, "recompute", 4.0)
    work.committed(ONE.epoch)
    assert settled == {"unused": 4.0, "used": 3.0}
