"""The trace, the two strategies in cases that can be worked out by hand, and the rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from experiments.swarm_rebalance.cases import MILD, ROUGH, courses, figure_7, percent, rows, table_5
from experiments.swarm_rebalance.run import play
from experiments.swarm_rebalance.spreading import AlgorithmTwo, ProductionTable, Spreading, Unmoved
from experiments.swarm_rebalance.trace import Change, Trace

SHORT = Trace(start=40, hours=2.0, leaves_per_hour=0.5, bursts_per_hour=3.0, calm_h=0.0)
MINUTE_S = 60.0


class Fixed(Random):
    """Draws the first stage and its first peer each time."""

    def random(self) -> float:
        return 0.0


def test_a_trace_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    assert SHORT.draw(Random(3)) == SHORT.draw(Random(3))
    assert SHORT.draw(Random(3)) != SHORT.draw(Random(4))


@pytest.mark.parametrize("trace", [SHORT, MILD, ROUGH])
def test_a_trace_is_in_order_and_never_below_one_peer(trace: Trace) -> None:
    changes = trace.draw(Random(1))
    assert all(first.time_s <= second.time_s for first, second in pairwise(changes))
    assert changes[0].time_s > 0
    assert changes[-1].time_s <= trace.hours * 3600
    peers = trace.start
    for change in changes:
        peers += 1 if change.comes else -1
        assert peers >= 1


def test_bursts_take_the_share_that_they_say_and_there_are_none_at_first() -> None:
    only = replace(SHORT, start=1000, leaves_per_hour=0.0, grants_per_hour=0.0, burst=(0.25, 0.25), calm_h=1.0)
    changes = only.draw(Random(0))
    assert min(change.time_s for change in changes) > 3600
    first = [change for change in changes if change.time_s <= changes[0].time_s + only.burst_s]
    assert len(first) >= 250
    assert not any(change.comes for change in changes)


def test_nobody_moves_and_the_smallest_stage_decides() -> None:
    changes = [Change(60.0, False), Change(90.0, False), Change(120.0, True)]
    course = play(changes, 8, 4, Unmoved(None), Fixed(), 180.0)
    assert course.throughput == [2.0, 0.5, 1.0], "one peer for half a minute, none, then the newcomer"
    assert course.whole == [2.0, 1.0, 1.0]
    assert course.fractional == [2.0, 1.625, 1.75]
    assert course.moves == 0


@pytest.mark.parametrize(
    ("strategy", "moved_s"), [(AlgorithmTwo(None, 300.0), 300.0), (ProductionTable(2, 60.0, 300.0), 300.0)]
)
def test_a_stage_that_lost_peers_gets_one_back_after_the_period(strategy: Spreading, moved_s: float) -> None:
    changes = [Change(30.0, False), Change(31.0, False), Change(32.0, False)]
    course = play(changes, 12, 2, strategy, Fixed(), 360.0)
    assert course.throughput[1:5] == [3.0] * 4
    assert course.throughput[5] == 4.0, f"6 and 3 peers become 5 and 4 at {moved_s} s"
    assert course.moves == 1


def test_one_move_a_period_is_algorithm_2s_pace_and_large_swarms_have_a_quicker_one_here() -> None:
    changes = [Change(1.0 + number, False) for number in range(20)]
    slow = play(changes, 200, 2, AlgorithmTwo(None, 300.0), Fixed(), 900.0)
    quick = play(changes, 200, 2, ProductionTable(2, 60.0, 300.0), Fixed(), 900.0)
    assert slow.throughput[-1] == 82.0
    assert quick.throughput[-1] == 90.0
    assert quick.moves == 10


def test_an_empty_stage_is_served_at_once_by_the_production_rule_only() -> None:
    changes = [Change(60.0, False), Change(60.0, False)]
    theirs = play(changes, 8, 4, AlgorithmTwo(None, 300.0), Fixed(), 360.0)
    ours = play(changes, 8, 4, ProductionTable(4, 60.0, 300.0), Fixed(), 360.0)
    assert theirs.throughput == [2.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert ours.throughput == [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_a_peer_that_loads_works_nowhere() -> None:
    course = play([Change(60.0, True)], 3, 2, Unmoved(None), Random(0), 240.0, load_s=90.0)
    assert course.throughput == [1.0, 1.0, 1.5, 2.0]


def test_the_rows_are_named_as_in_the_table_and_the_same_each_time() -> None:
    cases = [replace(case, trace=SHORT) for case in [*table_5(), *figure_7((8,))][:5]]
    found = [list(rows(case, courses(case, 2, 0))) for case in cases]
    assert found == [list(rows(case, courses(case, 2, 0))) for case in cases]
    first = found[0]
    assert [row.metric for row in first] == ["Overall", "First 1h", "Last 1h", "Overall, of n / S", "Moves an hour"]
    assert [row.paper for row in first] == [82.7, 99.0, 45.4, None, None]
    assert {row.n for row in first} == {2}


def test_no_strategy_is_better_than_the_optimum() -> None:
    for case in list(table_5())[:5]:
        for course in courses(replace(case, trace=SHORT), 2, 5):
            assert 0 < percent(course, slice(None), whole=False) <= percent(course, slice(None)) <= 100
