"""Like machines: what the least time is, and whose choice of recomputing counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.like_machines.__main__ import POLICIES, RATIO, SECONDS, measure, rows, scenario, seconds
from swarmflow.simulator.distributions import Constant

QUICK = scenario(quick=True)
LEAST_S = QUICK.model.microbatches * QUICK.model.stages / QUICK.peer_count * 3 * 0.2  # of a peer's own passes


def test_the_scenario_is_that_of_the_baselines_page() -> None:
    of = scenario(quick=False)
    assert (of.peer_count, of.model.stages, of.model.microbatches) == (16, 4, 128)
    assert (of.run.warmup, of.run.iterations) == (1, 4)


def test_a_baseline_has_the_better_choice_of_recomputing() -> None:
    narrow = replace(QUICK, peers=tuple(replace(peer, capacity=Constant(1)) for peer in QUICK.peers))
    without = replace(narrow, run=replace(narrow.run, recompute=False))
    both = [seconds(each, "gpipe", 0) for each in (narrow, without)]
    assert both[0] != both[1]
    assert measure(narrow, "gpipe", range(1)) == [min(both)]


@pytest.mark.extended
def test_nobody_is_faster_than_the_passes_of_a_peer() -> None:
    found = {(row.policy, row.metric): row.mean for row in rows(QUICK, range(1))}
    assert found["gpipe", RATIO] == 1
    for policy in POLICIES:
        assert found[policy, SECONDS] > LEAST_S
        assert found[policy, RATIO] == pytest.approx(found[policy, SECONDS] / found["gpipe", SECONDS])
