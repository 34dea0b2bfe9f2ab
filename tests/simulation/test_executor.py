"""The order in which a pretended device computes: of each kind of pass what came first, however many come later."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from swarmflow.core.protocol.actions import RunBackward, RunLoss
from swarmflow.core.protocol.types import Microbatch, ProcessId
from swarmflow.simulator.executor import Computing, Executor
from swarmflow.simulator.hop_results import HopResults
from tests.simulation.samples import CHURN, simulated

Passes = dict[ProcessId, list[Microbatch]]


def test_no_pass_waits_for_what_came_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the passes that give a gradient: asked for, answered, and finished in one order."""
    asked: Passes = defaultdict(list)
    answered: Passes = defaultdict(list)
    finished: Passes = defaultdict(list)
    unfinished: dict[ProcessId, int] = defaultdict(int)
    most = 0
    submit, answer, finish = Executor.submit, HopResults.deliver_input_gradient, HopResults.deliver_sum

    def submitting(executor: Executor, action: Computing) -> None:
        if isinstance(action, RunLoss):
            asked[executor.process].append(action.microbatch)
        submit(executor, action)

    def answering(results: HopResults, action: RunLoss | RunBackward) -> bool:
        nonlocal most
        if isinstance(action, RunLoss):
            answered[results.process].append(action.microbatch)
            unfinished[results.process] += 1
            most = max(most, unfinished[results.process])
        return answer(results, action)

    def finishing(results: HopResults, action: RunLoss | RunBackward) -> None:
        if isinstance(action, RunLoss):
            finished[results.process].append(action.microbatch)
            unfinished[results.process] -= 1
        finish(results, action)

    monkeypatch.setattr(Executor, "submit", submitting)
    monkeypatch.setattr(HopResults, "deliver_input_gradient", answering)
    monkeypatch.setattr(HopResults, "deliver_sum", finishing)
    calm = CHURN.split("[churn]")[0].replace("microbatches = 12", "microbatches = 48").replace("[1, 3]", "[6, 9]")
    simulated(tmp_path, calm)
    assert asked == answered == finished
    assert any(order != sorted(order, key=lambda each: (each.epoch, each.index)) for order in asked.values())
    assert most > 3, "memory has room for more than two that wait"
