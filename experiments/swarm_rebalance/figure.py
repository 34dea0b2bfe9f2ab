"""SWARM's Figures 5 and 7, with our figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from experiments.common.plot import quiet_pyplot, save
from experiments.swarm_rebalance.cases import HOUR, RebalanceCase
from experiments.swarm_rebalance.run import Course

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINT = HOUR // 4  # minutes of which one point is the mean
Found = Mapping[RebalanceCase, Sequence[Course]]


def draw(path: Path, found: Found) -> None:
    """Above the peers that a pipeline of four stages was worth, below the share of the best for more stages."""
    pyplot = quiet_pyplot()
    figure = pyplot.figure(figsize=(12, 7), layout="constrained")
    numbers = sorted({case.stages for case in found if case.setting.endswith("stages, T = 300")})
    grid = figure.add_gridspec(2, max(1, len(numbers)))
    above = figure.add_subplot(grid[0, :])
    _figure_5(
        above, {case: courses for case, courses in found.items() if case.setting in ("None", "T = 300", "T = 60")}
    )
    for place, number in enumerate(numbers):
        panel = figure.add_subplot(grid[1, place])
        cases = [case for case in found if case.setting == f"{number} stages, T = 300"]
        _figure_7(panel, number, {case: found[case] for case in cases})
        if place == 0:
            panel.set_ylabel("% of optimal")
            panel.legend(loc="lower left", fontsize=7)
    save(figure, path)


def _figure_5(panel: Axes, found: Found) -> None:
    courses = next(iter(found.values()))
    panel.plot(*_points([course.whole for course in courses]), color="black", linestyle="--", label="optimal")
    for case, some in found.items():
        if case.setting != "T = 60" or case.policy == "swarm":
            label = f"{case.policy}, {case.setting}" if case.setting != "None" else case.policy
            panel.plot(*_points([course.throughput for course in some]), label=label, linewidth=1)
    panel.set_title("Figure 5: throughput over time, 4 stages (peers of the smallest stage)")
    panel.set_xlabel("hours")
    panel.set_ylim(bottom=0)
    panel.legend(fontsize=8)


def _figure_7(panel: Axes, number: int, found: Found) -> None:
    for case, courses in found.items():
        shares = [_shares(course) for course in courses]
        panel.plot(*_points(shares), label=case.policy, linewidth=1)
    panel.set_title(f"Figure 7: {number} stages, T = 300", fontsize=9)
    panel.set_xlabel("hours")
    panel.set_ylim(0, 102)


def _shares(course: Course) -> list[float]:
    return [100 * got / best for got, best in zip(course.throughput, course.whole, strict=True)]


def _points(lines: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Hours, and the mean of several lines at them."""
    starts = range(0, len(lines[0]), POINT)
    means = [fmean(value for line in lines for value in line[start : start + POINT]) for start in starts]
    return [(start + POINT / 2) / HOUR for start in starts], means
