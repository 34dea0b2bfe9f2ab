"""A module is examined before a run: its operators are measured, it is cut by them, and compared with its stages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from swarmflow.compute.graphs.examine import ExaminedGraph, ModuleTrial, examine_graph
from swarmflow.errors import ModelError
from swarmflow.planning.operators import OperatorCosts, cut_operators
from tests.compute.graphs.networks import ITEMS, WIDTH
from tests.compute.graphs.test_graphs import HERE, SEED, VECTORS, batch_of
from trainers.check.operators import operator_lines


def examined(kind: str, stages: int, cut: Sequence[int] | Sequence[str] | None = None) -> ExaminedGraph:
    """What is found out of a network, as in a run."""

    def plan(
        seconds: Sequence[float], crossing: Sequence[int], places: Sequence[int], filled: Sequence[int], count: int
    ) -> tuple[int, ...] | None:
        return cut_operators(OperatorCosts(seconds, crossing, places, filled), count)

    trial = ModuleTrial(f"{HERE}:odd", {"kind": kind}, VECTORS, batch_of(VECTORS), ITEMS, SEED)
    return examine_graph(trial, stages, cut, plan)


def test_a_cut_follows_from_what_operators_take() -> None:
    found = examined("plain", 3)
    assert len(found.cut) == 2
    found.model.check_cut(found.cut)
    assert sum(found.costs) == pytest.approx(sum(each.seconds for each in found.workloads))
    linear = [each for each in found.workloads if each.name == "aten.linear.default"]
    assert [each.where for each in linear] == ["first", "middle", "last", "head"]
    # 2 operations a weight and item forward, and twice as many backward.
    assert linear[0].gigaflops == pytest.approx(3 * 2e-9 * ITEMS * WIDTH * WIDTH)
    lines = operator_lines(found)
    assert [line.split()[0] for line in lines if line.startswith("*")] == [f"*{place}" for place in (0, *found.cut)]
    assert len(lines) == 1 + len(found.workloads)


def test_a_cut_may_name_submodules() -> None:
    found = examined("plain", 3, ["middle", "head"])
    assert [found.workloads[place].where for place in found.cut] == ["middle", "head"]
    with pytest.raises(ModelError, match=r"names 'midle', which calls no operator \(did you mean middle\?\)"):
        examined("plain", 2, ["midle"])


def test_more_stages_than_there_are_parameters_are_refused() -> None:
    with pytest.raises(ModelError, match="its graph cannot be cut into so many"):
        examined("plain", 9)
    with pytest.raises(ModelError, match="stage 1 would have no parameter of its own"):
        examined("plain", 3, [1, 2])


def test_a_graph_that_is_not_what_the_module_computes_is_refused() -> None:
    with pytest.raises(ModelError, match=r"the gradient of .* is another one than by itself"):
        examined("lost", 1)
