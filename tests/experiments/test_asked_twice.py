"""What counts as asked for twice, and of which scenarios."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.asked_twice.__main__ import HOPS, TWICE, rows
from experiments.asked_twice.cases import cases, quick_cases
from experiments.like_machines.__main__ import scenario
from swarmflow.errors import SwarmflowError
from swarmflow.simulator.scenario import Arrival


def test_scenarios_have_names_of_their_own_and_nobody_comes_or_leaves() -> None:
    found = list(cases(0, full=True))
    assert {name for name, _ in cases(0, full=False)} < {name for name, _ in found}
    assert len({name for name, _ in found}) == len(found)
    assert {name.split(":")[0] for name, _ in found} >= {name.split(":")[0] for name, _ in quick_cases(0)}
    assert not any(of.churn.leave_chance or of.arrivals for _, of in found)


def test_no_hop_of_like_machines_is_asked_for_twice() -> None:
    of = scenario(quick=True)
    found = {row.metric: row.mean for row in rows("like", of, 0)}
    assert found[HOPS] == of.model.microbatches * of.model.stages * (of.run.warmup + of.run.iterations)
    assert found[TWICE] == 0


def test_a_swarm_in_which_somebody_dies_is_refused() -> None:
    of = replace(scenario(quick=True), arrivals=(Arrival(6.0, False, 3),))
    with pytest.raises(SwarmflowError, match="1 deaths"):
        list(rows("like", of, 0))
