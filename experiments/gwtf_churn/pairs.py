"""The same seeds under two policies: means, and the ratio of two, each with a 95% interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from rich.console import Console
from rich.table import Table

RESAMPLES = 2000
TAIL = 0.025  # of the resamples on each side of a 95% interval
WIDTH = 160  # of a table where the output is no terminal


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, and its 95% interval by the bootstrap over seeds; of one seed there is none."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        shown = f"{self.value:.3f}"
        return shown if self.low == self.high else f"{shown} [{self.low:.3f}, {self.high:.3f}]"


def mean(values: Sequence[float]) -> Estimate:
    """The mean over seeds."""
    return _estimate(len(values), lambda seeds: fmean(values[seed] for seed in seeds))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """The mean of ours by the mean of theirs. Both are of the same seeds in the same order, and are drawn together."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} values are no pairs")
    return _estimate(len(ours), lambda seeds: sum(ours[seed] for seed in seeds) / sum(theirs[seed] for seed in seeds))


def _estimate(count: int, statistic: Callable[[Sequence[int]], float]) -> Estimate:
    random = Random(0)
    drawn = sorted(statistic([random.randrange(count) for _ in range(count)]) for _ in range(RESAMPLES))
    edge = int(TAIL * RESAMPLES)
    return Estimate(statistic(range(count)), drawn[edge], drawn[-1 - edge])


def show_estimates(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Estimate]]]) -> None:
    """Print a table of estimates. columns: the heads, that of the rows' names first."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for name, found in rows:
        table.add_row(name, *(str(each) for each in found))
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=WIDTH)).print(table)
