"""Where a graph of operators can be cut: the places that parameters of stages allow, and the narrow ones of them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence

from swarmflow.compute.graphs.description import GraphModel, GraphParameter


def allowed_places(model: GraphModel) -> Iterator[list[int]]:
    """Yield the operators before which a graph can be cut, into as many stages as there are places for.

    First with parameters that the first and the last stage share, then with none that two stages share: places of both
    cannot be mixed.
    """
    places = [place for place in range(1, model.operators) if model.crossing[place] >= 0]
    shared = [each for each in model.parameters if len(each.uses) > 1]
    within = [_largest_gap(each) for each in shared]
    yield [p for p in places if all(low < p <= high for low, high in within)]
    yield [p for p in places if not any(each.uses[0] < p <= each.uses[-1] for each in shared)]


def parameters_before(model: GraphModel) -> list[int]:
    """Return for each place how many parameters that no other stage can share lie before it; each stage needs one."""
    uses = sorted(each.uses[0] for each in model.parameters if len(each.uses) == 1)
    return [bisect.bisect_left(uses, place) for place in range(model.operators + 1)]


def narrow_places(model: GraphModel, seconds: Sequence[float], most: int) -> tuple[int, ...]:
    """Return at most so many places, between any two of which a stage can lie, spread over the seconds of operators.

    Of each stretch of the graph the place is taken where the fewest elements cross. Of the two kinds of places the one
    that has more of them.
    """
    before, filled = list(itertools.accumulate(seconds, initial=0.0)), parameters_before(model)
    total = before[-1] or 1.0
    found: list[tuple[int, ...]] = []
    for places in allowed_places(model):
        narrow: dict[int, int] = {}  # stretch -> place
        for place in places:
            stretch = int(before[place] * most / total)
            if stretch not in narrow or model.crossing[place] < model.crossing[narrow[stretch]]:
                narrow[stretch] = place
        taken = [0]
        for place in narrow.values():
            if filled[taken[-1]] < filled[place] < filled[-1]:
                taken.append(place)
        found.append(tuple(taken[1:]))
    return max(found, key=len)


def _largest_gap(parameter: GraphParameter) -> tuple[int, int]:
    """Return the two uses of a parameter between which most operators lie."""
    return max(itertools.pairwise(parameter.uses), key=lambda pair: pair[1] - pair[0])
