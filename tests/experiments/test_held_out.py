"""Drawn scenarios: what each family is, which draws are refused, and what is concluded from figures."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from experiments.held_out.__main__ import COUNTED, QUICK, RATIO, SECONDS, rows, seeds_of
from experiments.held_out.drawing import (
    PARAMETERS_MAX,
    PEERS_MAX,
    SCENARIOS,
    HeldOutScenario,
    MassDeath,
    SwarmFamily,
    draw,
)
from experiments.held_out.policies import ALL, BASELINES, ORACLE, OURS, PolicyResult, measure, report_of
from experiments.held_out.verdict import counted, ratios, verdict
from swarmflow.simulator.distributions import Distribution
from swarmflow.simulator.scenario import Scenario

DRAWN = [each for seed in range(5) for each in draw(seed)]


def each_peer(scenario: Scenario, what: str) -> list[float]:
    found: list[Distribution] = [getattr(peer, what) for peer in scenario.peers]
    return [each.at(0.5) for each in found]


def of_family(family: SwarmFamily) -> list[HeldOutScenario]:
    return [each for each in DRAWN if family in each.families]


def test_each_family_is_there_twice_alone_and_in_sets() -> None:
    drawn = draw(3)
    assert draw(3) == drawn != draw(4)
    assert len(drawn) == SCENARIOS == len({each.name for each in drawn})
    families = [each.families for each in drawn]
    assert families[:12] == [(family,) for family in SwarmFamily] * 2
    assert sorted(len(some) for some in families[12:]) == [2] * 6 + [3] * 2
    assert len(set(families[12:])) == 8


def test_no_draw_is_impossible_or_too_large() -> None:
    for each in DRAWN:
        scenario, model = each.scenario, each.scenario.model
        least = 3 if SwarmFamily.HALF_DIE in each.families else 2
        assert least * model.stages <= scenario.peer_count <= PEERS_MAX
        assert model.microbatches >= 4 * (scenario.peer_count // model.stages)
        assert min(each_peer(scenario, "capacity")) >= 1
        assert isinstance(model.parameters, tuple)
        assert max(model.parameters) <= PARAMETERS_MAX


def test_costs_and_parameters_are_of_the_same_blocks() -> None:
    for each in DRAWN:
        model = each.scenario.model
        assert isinstance(model.parameters, tuple)
        blocks = {count / cost for count, cost in zip(model.parameters[1:], model.costs[1:], strict=True)}
        assert len(blocks) == 1, "parameters of a block"
        assert model.parameters[0] > model.costs[0] * blocks.pop(), "and the embedding"


def test_families_are_what_they_are_called() -> None:
    for each in of_family(SwarmFamily.CONSUMER_LINKS):
        assert set(each_peer(each.scenario, "up_mbps")) == {5.0}
        assert set(each_peer(each.scenario, "down_mbps")) == {20.0}
    for each in of_family(SwarmFamily.LITTLE_MEMORY):
        assert set(each_peer(each.scenario, "capacity")) <= {1, 2}
    for each in DRAWN:
        costs = each.scenario.model.costs
        heavy = max(costs) / min(costs)
        assert (3 <= heavy <= 6) if SwarmFamily.HEAVY_STAGE in each.families else heavy == 1
        speeds = sorted(each_peer(each.scenario, "flops"))
        mixed, slow = SwarmFamily.MIXED_DEVICES in each.families, SwarmFamily.SLOW_FIFTH in each.families
        assert (speeds[-1] / median(speeds) > 1.5 or median(speeds) / speeds[0] > 1.5) == (mixed or slow)
        if slow and not mixed:
            fifth = len(speeds) // 5
            assert speeds[fifth - 1] < 0.16 * speeds[fifth]
        assert (each.death is not None) == (SwarmFamily.HALF_DIE in each.families)
        if each.death is not None:
            assert len(set(each.death.peers)) == each.scenario.peer_count // 2


def small(death: MassDeath | None = None) -> HeldOutScenario:
    """The smallest one of the quick run, without churn by chance."""
    drawn = min((draw(0)[number - 1] for number in QUICK), key=lambda each: each.scenario.peer_count)
    calm = replace(drawn.scenario.churn, leave_chance=0.0, join_chance=0.0)
    return replace(drawn, scenario=replace(drawn.scenario, churn=calm), death=death)


@pytest.mark.parametrize("policy", ["gpipe", pytest.param("swarmflow", marks=pytest.mark.extended)])
def test_peers_die_at_once_in_the_first_measured_iteration(policy: str) -> None:
    drawn = small(MassDeath((1, 4), 0.5))
    report = report_of(drawn, drawn.scenario, policy, 0)
    calm = report_of(small(), drawn.scenario, policy, 0)
    assert [row.deaths for row in report.iterations] == [0, 2, 0, 0]
    assert report.iterations[0].seconds == calm.iterations[0].seconds
    assert report.measured[0].seconds > calm.measured[0].seconds


def test_a_baseline_has_the_better_choice_of_recomputing() -> None:
    drawn = small()
    run = drawn.scenario.run
    reports = {
        recompute: report_of(drawn, replace(drawn.scenario, run=replace(run, recompute=recompute)), "gpipe", 0)
        for recompute in (True, False)
    }
    both = {recompute: report.over(lambda row: row.seconds)[0] for recompute, report in reports.items()}
    found = measure(drawn, "gpipe", [0])
    assert both[True] != both[False]
    assert found.seconds == (min(both.values()),)
    assert both[found.recompute] == min(both.values())


@pytest.mark.extended
def test_an_iteration_without_some_gradients_counts_for_less() -> None:
    drawn = small(MassDeath((1, 4), 0.5))
    found, ours = measure(drawn, "swarm", [0]), measure(drawn, OURS[0], [0])
    assert found.seconds > found.counted_seconds == found.counted.seconds
    assert ours.seconds == ours.counted_seconds, "they are computed again"


def test_a_policy_that_does_not_get_to_its_end_has_a_reason_and_no_figure() -> None:
    drawn = small()
    brief = replace(drawn, scenario=replace(drawn.scenario, run=replace(drawn.scenario.run, limit_s=1.0)))
    found = measure(brief, "gpipe", [0])
    assert found.seconds == ()
    assert found.reason.startswith("stands still")
    listed = list(rows("a", results({}) | {"gpipe": found}))
    assert {row.policy for row in listed} == {policy for policy in ALL if policy != "gpipe"}


def test_several_seeds_are_of_churn_by_chance() -> None:
    calm = small()
    churn = replace(calm, scenario=replace(calm.scenario, churn=replace(calm.scenario.churn, leave_chance=0.1)))
    assert list(seeds_of(calm, 7, False)) == [7] == list(seeds_of(churn, 7, True))
    assert list(seeds_of(churn, 7, False)) == [7, 8]


def results(given: dict[str, float]) -> dict[str, PolicyResult]:
    """Of every policy: 10 s, but for some."""
    return {policy: PolicyResult((given.get(policy, 10.0),), (1.0,)) for policy in ALL}


def test_the_verdict_counts_scenarios() -> None:
    first, second = OURS[:2]
    ahead = results({second: 8.0, BASELINES[0]: 9.0})
    behind = results({BASELINES[1]: 8.0, ORACLE: 1.0})
    found = verdict([ahead, behind])
    assert (found.scenarios, found.ahead, found.near) == (2, 1, 1)
    assert found.deficit == pytest.approx(0.25)
    assert ratios(ahead)[first] == pytest.approx(1.25)
    assert "25.0% more time" in found.lines()[1]
    assert "11.1% less time" in verdict([ahead]).lines()[1]
    assert verdict([counted(ahead)]).ahead == 0


def test_a_baseline_without_a_figure_is_behind_and_ours_is_no_draw() -> None:
    alone = results({}) | {policy: PolicyResult((), (), reason="stands still") for policy in BASELINES}
    assert verdict([alone]).ahead == 1
    with pytest.raises(ValueError, match="no router"):
        verdict([{policy: PolicyResult((), ()) for policy in ALL}])


def test_rows_have_seconds_and_ratios() -> None:
    found = [row for row in rows("1. a", results({OURS[0]: 5.0})) if row.policy == ORACLE]
    assert [(row.metric, row.mean) for row in found] == [(SECONDS, 10.0), (COUNTED, 1.0), (RATIO, 2.0)]
