"""`python -m experiments.dtfm_search`: DT-FM's Figure 4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import click

from experiments.common.arguments import options, plot_file, progress, run
from experiments.common.plot import quiet_pyplot, save
from experiments.common.rows import Row, distinct, row, write_json
from experiments.common.table import show
from experiments.dtfm_cases.cases import CASES, DtfmCase
from experiments.dtfm_cases.plans import planning_problem
from swarmflow.planning import places
from swarmflow.planning.arrangement import Problem
from swarmflow.planning.bound import lower_bound_s
from swarmflow.planning.dtfm import GENERATIONS, GeneticSearch, LocalSearch
from swarmflow.planning.strategies import drawn

Reading = tuple[str, float | None]  # a name, and the microbatches whose activations a link carries; None: its share
READINGS: tuple[Reading, ...] = (("an iteration", None), ("a microbatch", 1))
SEARCHES = {
    "GA, the paper's local search": LocalSearch.FASTEST,
    "GA, Kernighan-Lin": LocalSearch.KERNIGHAN_LIN,
    "GA, no local search": LocalSearch.NONE,
}
RANDOM, PLACES = "random", "places"
AFTER = (0, 10, 50, GENERATIONS)  # generations that the table shows
SEEDS = 5
Costs = dict[tuple[str, str], list[list[float]]]  # by reading and search: of each seed, by generation, by the bound


def costs(case: DtfmCase, seed: int, seeds: int, readings: tuple[Reading, ...] = READINGS) -> Costs:
    """Search each reading of the cost with each local search; one plan at random and one by `places` do not change."""
    found: Costs = {}
    work = [(each, name) for name in (*SEARCHES, RANDOM, PLACES) for each in range(seed, seed + seeds)]
    for reading, microbatches in readings:
        for each, name in progress(work, len(work), f"dtfm_search, {reading}"):
            given = planning_problem(case, microbatches, each)
            bound_s = lower_bound_s(given)
            by_generation = [cost_s / bound_s for cost_s in _costs_s(given, name, each)]
            found.setdefault((reading, name), []).append(by_generation)
    return found


def _costs_s(given: Problem, name: str, seed: int) -> list[float]:
    if name in SEARCHES:
        search = GeneticSearch(given, Random(seed), SEARCHES[name])
        search.evolved()
        return search.least_s
    strategy = drawn if name == RANDOM else places.arrange
    return [strategy(given, Random(seed)).cost_s] * (GENERATIONS + 1)


def rows(found: Costs, case: DtfmCase) -> Iterator[Row]:
    """The cost by the bound after some generations."""
    for (reading, name), seeds in found.items():
        for after in AFTER:
            values = [by_generation[after] for by_generation in seeds]
            yield row(f"{case.name}, {reading}", name, f"Cost by the bound, {after} generations", values)


def plot(path: Path, found: Costs) -> None:
    """Draw the means over the seeds by generation. Raises ConfigError when the file cannot be written."""
    pyplot = quiet_pyplot()
    readings = distinct(reading for reading, _ in found)
    size = (4.5 * len(readings), 3.4)
    figure, panels = pyplot.subplots(1, len(readings), squeeze=False, figsize=size, layout="constrained")
    for panel, reading in zip(panels[0], readings, strict=True):
        for name in (*SEARCHES, RANDOM, PLACES):
            panel.plot(_means(found[reading, name]), label=name, linestyle="-" if name in SEARCHES else ":")
        panel.set(title=f"activations of {reading}", xlabel="generation", ylabel="cost by the bound", ylim=(0, None))
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    save(figure, path)


def _means(seeds: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) / len(values) for values in zip(*seeds, strict=True)]


@click.command("dtfm_search")
@options
def dtfm_search(quick: bool, seed: int, json_file: Path | None) -> None:
    """DT-FM, Figure 4: the genetic search with its own local search, with Kernighan and Lin's, and with none."""
    case = CASES[-1].thinned(4) if quick else CASES[-1]
    found = costs(case, seed, 1 if quick else SEEDS, READINGS[:1] if quick else READINGS)
    shown = list(rows(found, case))
    show("DT-FM, Figure 4: the best plan after so many generations, beside what no plan can be below", shown)
    if json_file is not None:
        write_json(json_file, shown)
    plot(plot_file(__file__, quick), found)


if __name__ == "__main__":
    run(dtfm_search)
