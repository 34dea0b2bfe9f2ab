"""The cut for given machines: as good as the best of all cuts and all shares of the machines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.errors import ConfigError
from swarmflow.planning.cut import (
    NARROW_WORTH,
    WORTH,
    CutProblem,
    MachineClass,
    PlannedStage,
    bottleneck,
    plan_cut_for,
    serve,
)


def problem(
    costs: Sequence[float], classes: Sequence[tuple[int, float, float]], at_least: int = 1, ends: float = 0.5
) -> CutProblem:
    """costs: of each block, which is as large. classes: counts, speeds, memories. ends: of embedding and head."""

    def size(first: int, stop: int) -> float:
        return sum(costs[first:stop]) + ends * ((first == 0) + (stop == len(costs)))

    return CutProblem(
        len(costs),
        tuple(MachineClass(str(number), count, speed) for number, (count, speed, _) in enumerate(classes)),
        size,
        lambda first, stop: [size(first, stop) <= memory for _, _, memory in classes],
        "block {}".format,
        at_least,
    )


def test_edges_move_to_where_less_crosses_them() -> None:
    of = replace(
        problem([1.0] * 40, [(1, 3.0, 99.0), (1, 1.0, 99.0)], ends=0.0), crossing=[1 + (n + 1) % 3 for n in range(40)]
    )
    plan = plan_cut_for(of, 2)
    check(of, plan)
    assert of.crossing[plan[1].first] == 1
    least = bottleneck(plan_cut_for(replace(of, crossing=()), 2))
    assert least < bottleneck(plan) <= NARROW_WORTH * least


def shares(counts: Sequence[int], stages: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All shares of machines of each class among stages, some left over or none; `[stage][class]`."""
    of_class = [[share for share in itertools.product(range(n + 1), repeat=stages) if sum(share) <= n] for n in counts]
    for chosen in itertools.product(*of_class):
        yield tuple(zip(*chosen, strict=True))


def best_of_all(of: CutProblem, stages: int, cuts: Sequence[Sequence[int]] | None = None) -> float:
    found = math.inf
    for cut in cuts if cuts is not None else itertools.combinations(range(1, of.blocks), stages - 1):
        edges = list(itertools.pairwise([0, *cut, of.blocks]))
        for share in shares([each.count for each in of.classes], stages):
            if all(sum(machines) >= of.at_least for machines in share):
                plan = [of.stage(*edge, machines) for edge, machines in zip(edges, share, strict=True)]
                found = min(found, bottleneck(plan))
    return found


def check(of: CutProblem, plan: Sequence[PlannedStage]) -> None:
    """The stages are all blocks, no machine serves two of them or one that it cannot hold."""
    assert [stage.first for stage in plan] == [0, *(stage.stop for stage in plan)][:-1]
    assert plan[-1].stop == of.blocks
    for place, each in enumerate(of.classes):
        assert sum(stage.machines[place] for stage in plan) <= each.count
    for stage in plan:
        assert sum(stage.machines) >= of.at_least
        assert stage == of.stage(stage.first, stage.stop, stage.machines)
        assert math.isfinite(stage.seconds)


classes = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from((0.5, 1.0, 3.0)), st.sampled_from((1.5, 3.0, 5.0, 99.0))),
    min_size=1,
    max_size=2,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=1, max_size=5), classes, st.integers(1, 2))
def test_no_cut_and_no_sharing_is_better(
    costs: list[float], machines: list[tuple[int, float, float]], at_least: int
) -> None:
    of = problem(costs, machines, at_least)
    best = {stages: best_of_all(of, stages) for stages in range(1, of.stages_max + 1)}
    for stages, wanted in best.items():
        if math.isinf(wanted):
            with pytest.raises(ConfigError, match="can"):
                plan_cut_for(of, stages)
        else:
            plan = plan_cut_for(of, stages)
            check(of, plan)
            assert len(plan) == stages
            assert bottleneck(plan) <= wanted
    if any(map(math.isfinite, best.values())):
        chosen = plan_cut_for(of)
        check(of, chosen)
        assert bottleneck(chosen) * WORTH <= min(best.values()), "it is within 3% of the best"
        fewer = [best[stages] for stages in range(1, len(chosen))]
        assert all(bottleneck(chosen) < WORTH * seconds for seconds in fewer), "fewer stages are slower by 3%"


@settings(max_examples=20, deadline=None)
@given(classes, st.sets(st.integers(1, 4), max_size=2))
def test_a_given_cut_is_served_as_well_as_can_be(machines: list[tuple[int, float, float]], edges: set[int]) -> None:
    of, cut = problem([1.0, 2.0, 1.0, 1.0, 0.5], machines), sorted(edges)
    plan, wanted = serve(of, cut), best_of_all(of, len(cut) + 1, [cut])
    if math.isinf(wanted):
        assert plan == ()
    else:
        check(of, plan)
        assert [stage.first for stage in plan[1:]] == cut
        assert bottleneck(plan) <= wanted


def test_a_fast_machine_gets_more_blocks_and_a_small_one_what_it_can_hold() -> None:
    plan = plan_cut_for(problem([1.0] * 8, [(2, 3.0, 99.0), (2, 1.0, 2.5)], ends=0.0), 4)
    assert sorted((stage.stop - stage.first, stage.machines) for stage in plan) == [
        (1, (0, 1)),
        (1, (0, 1)),
        (3, (1, 0)),
        (3, (1, 0)),
    ]


def test_of_hundreds_of_machines_none_is_left_out() -> None:
    of = problem([1.0] * 12, [(301, 3.0, 99.0), (200, 1.0, 4.0)])
    plan = plan_cut_for(of)
    check(of, plan)
    assert [sum(stage.machines[place] for stage in plan) for place in range(2)] == [301, 200]
    assert bottleneck(plan) < 1.05 * of.least_s


def test_many_small_machines_get_as_many_stages_as_they_need() -> None:
    assert len(plan_cut_for(problem([1.0] * 24, [(24, 1.0, 1.6)]))) == 24


@pytest.mark.parametrize(
    ("of", "stages", "reason"),
    [
        (problem([1.0, 5.0, 1.0], [(9, 1.0, 3.0)]), None, "no machine can hold block 1 alone"),
        (problem([1.0] * 9, [(2, 1.0, 3.0)]), None, "in any number of stages however it is cut: add machines"),
        (problem([1.0] * 9, [(5, 1.0, 3.0)], at_least=2), 2, "in that many stages, with 2 for each, however"),
        (problem([1.0] * 9, [(3, 1.0, 99.0)], at_least=2), 2, "at most 1 are possible here"),
        (problem([1.0] * 9, [(2, 1.0, 1.6)] * 7), 9, "taken 2 at a time: name fewer kinds"),
        (problem([1.0] * 9, [(600, 1.0, 9.9)], at_least=599), 1, "taken 2 at a time: name fewer kinds"),
        (problem([1.0] * 9, [(601, 1.0, 9.9)], at_least=601), 1, "taken 2 at a time: name fewer kinds"),
    ],
)
def test_what_is_too_small_is_said_to_be(of: CutProblem, stages: int | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan_cut_for(of, stages)
