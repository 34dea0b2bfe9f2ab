"""What is compared: the settings of SWARM's Table 5 and Figure 7, and the strategies in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from experiments.common.rows import Row, row
from experiments.swarm_rebalance.run import BIN_S, Course, play
from experiments.swarm_rebalance.spreading import AlgorithmTwo, ProductionTable, Spreading, Unmoved
from experiments.swarm_rebalance.trace import HOUR_S, Trace

STAGES = 4  # of Table 5 and Figure 5
PEERS_A_STAGE = 100
STEP_S = 60.0  # swarmflow moves peers between two steps only
LOAD_S = 60.0  # 4 GB of weights and optimizer state (a third of 1.01 billion parameters) at 500 Mb/s
HOUR = round(HOUR_S / BIN_S)
MILD = Trace()
ROUGH = Trace(leaves_per_hour=0.2, grants_per_hour=4.0, bursts_per_hour=1.5)

SMALLEST = ", newcomers to the smallest stage"
PAPER = {  # Table 5: overall, first hour, last hour
    ("None", "none"): (82.7, 99.0, 45.4),
    ("T = 300", "swarm"): (95.8, 99.4, 88.9),
    ("T = 60", "swarm"): (97.6, 99.8, 91.7),
}


Make = Callable[[Random], Spreading]


@dataclass(frozen=True, slots=True)
class RebalanceCase:
    """A line of a table: a strategy in a setting. make: the strategy, from its own random numbers."""

    setting: str
    policy: str
    stages: int
    trace: Trace
    load_s: float
    make: Make
    paper: tuple[float, float, float] | None = None


def table_5() -> Iterator[RebalanceCase]:
    """Four stages; what is loaded is there at once as in the paper, or after LOAD_S."""
    for suffix, trace, load_s in (("", MILD, 0.0), (", rough", ROUGH, 0.0), (", 60 s to load", MILD, LOAD_S)):
        for name, policy, make in _strategies(STAGES):
            paper = PAPER.get((name, policy)) if load_s == 0 else None
            yield RebalanceCase(name + suffix, policy, STAGES, trace, load_s, make, paper)


def figure_7(stages: tuple[int, ...]) -> Iterator[RebalanceCase]:
    """T = 300; as many peers a stage as with four, and the same chance for each to be taken away."""
    for number in stages:
        for name, policy, make in _strategies(number):
            if name != "T = 60" and policy != "none" + SMALLEST:
                yield RebalanceCase(f"{number} stages, T = 300", policy, number, MILD, 0.0, make)


def _strategies(stages: int) -> Iterator[tuple[str, str, Make]]:
    """Setting, policy and strategy of each line of a table."""
    yield "None", "none", Unmoved
    yield "None", "none" + SMALLEST, lambda random: Unmoved(None)
    for period_s in (300.0, 60.0):
        name = f"T = {period_s:.0f}"
        yield name, "swarm", _algorithm_2(period_s, favoured=False)
        yield name, "swarm" + SMALLEST, _algorithm_2(period_s, favoured=True)
        yield name, "swarmflow", _production(stages, period_s)


def _algorithm_2(period_s: float, favoured: bool) -> Make:
    return lambda random: AlgorithmTwo(None if favoured else random, period_s)


def _production(stages: int, period_s: float) -> Make:
    return lambda random: ProductionTable(stages, STEP_S, period_s)


def courses(case: RebalanceCase, seeds: int, trace_seed: int) -> list[Course]:
    """One trace, as in the paper, and so many draws of who leaves (and of where newcomers go, where it is drawn)."""
    trace = replace(case.trace, start=PEERS_A_STAGE * case.stages)
    changes, end_s = trace.draw(Random(trace_seed)), trace.hours * HOUR_S
    return [
        play(changes, trace.start, case.stages, case.make(Random(2 * seed + 1)), Random(2 * seed), end_s, case.load_s)
        for seed in range(1000 * trace_seed, 1000 * trace_seed + seeds)
    ]


def rows(case: RebalanceCase, found: list[Course]) -> Iterator[Row]:
    """As in Table 5, in percent of the best throughput with whole peers; overall also without; and moves an hour."""
    paper = case.paper or (None, None, None)
    for metric, part, value in (
        ("Overall", slice(None), paper[0]),
        ("First 1h", slice(HOUR), paper[1]),
        ("Last 1h", slice(-HOUR, None), paper[2]),
    ):
        yield row(case.setting, case.policy, metric, [percent(course, part) for course in found], value)
    fractional = [percent(course, slice(None), whole=False) for course in found]
    yield row(case.setting, case.policy, "Overall, of n / S", fractional)
    hours = len(found[0].throughput) / HOUR
    yield row(case.setting, case.policy, "Moves an hour", [course.moves / hours for course in found])


def percent(course: Course, part: slice, whole: bool = True) -> float:
    """What was computed in a part of the course by what the best arrangement would have computed in it, in percent."""
    best = course.whole if whole else course.fractional
    return 100 * sum(course.throughput[part]) / sum(best[part])
