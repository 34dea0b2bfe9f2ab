"""Parts of a stage of a module: where its operators are divided for a backward pass that computes them again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

from swarmflow.compute.graphs.capture import OperatorGraph

_EDGES_MAX = 128  # that are tried: one in each of so many stretches of a stage
_HALVINGS = 8  # of the largest part: with more parts than 2 to this power nothing is gained


def part_edges(graph: OperatorGraph, first: int, stop: int) -> tuple[int, ...]:
    """Return the edges of the parts of the operators `first` to `stop`, with both ends.

    A microbatch keeps what enters each part, and a pass what is within one more: the edges make the sum of both small,
    in elements of results (Chen et al., 2016, section 4.3: a budget for a segment, searched over several). All uses of
    a parameter are in one part, which gives its gradient in one.
    """
    elements = [_elements(node.meta.get("val")) for node in graph.operators[first:stop]]
    before = dict(enumerate(itertools.accumulate(elements, initial=0), first))
    total = max(1, before[stop])
    narrow: dict[int, int] = {}  # stretch of the stage -> the place in it where the fewest elements cross
    for place in _allowed(graph, first, stop):
        stretch = before[place] * _EDGES_MAX // total
        if stretch not in narrow or graph.crossing[place] < graph.crossing[narrow[stretch]]:
            narrow[stretch] = place
    places = [first, *narrow.values(), stop]
    best: tuple[float, tuple[int, ...]] = (total, (first, stop))
    for halvings in range(2 * _HALVINGS):
        found = _fewest(places, before, graph.crossing, total * 0.5 ** (halvings / 2))
        if found is not None:
            largest = max(before[high] - before[low] for low, high in itertools.pairwise(found))
            best = min(best, (largest + sum(graph.crossing[place] for place in found[1:-1]), found))
    return best[1]


def _fewest(
    places: Sequence[int], before: dict[int, int], crossing: Sequence[int], limit: float
) -> tuple[int, ...] | None:
    """Return the edges at which the fewest elements cross, of parts with at most so many; None: there are none."""
    reached: dict[int, tuple[int, tuple[int, ...]]] = {places[0]: (0, (places[0],))}
    for place in places[1:]:
        entered = crossing[place] if place < places[-1] else 0
        found = [
            (cost + entered, (*edges, place))
            for low, (cost, edges) in reached.items()
            if before[place] - before[low] <= limit
        ]
        if found:
            reached[place] = min(found)
    return reached[places[-1]][1] if places[-1] in reached else None


def _allowed(graph: OperatorGraph, first: int, stop: int) -> list[int]:
    """Return the places within a stage that separate no two uses of a parameter, and that every tensor can cross."""
    uses: dict[object, list[int]] = {}
    for number in range(first, stop):
        for each in graph.operators[number].all_input_nodes:
            source = graph.casts.get(each, each)
            if source in graph.parameters:
                uses.setdefault(graph.parameters[source], []).append(number)
    within = {place for numbers in uses.values() for place in range(numbers[0] + 1, numbers[-1] + 1)}
    return [place for place in range(first + 1, stop) if graph.crossing[place] >= 0 and place not in within]


def _elements(value: object) -> int:
    tensors = value if isinstance(value, tuple | list) else (value,)
    return sum(each.numel() for each in tensors if isinstance(each, Tensor))
