"""The cut of a graph of operators has the fastest slowest stage, up to a tenth for less that crosses."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.planning.operators import WORTH, OperatorCosts, cut_operators


@st.composite
def graphs(draw: st.DrawFn) -> OperatorCosts:
    """Few enough operators that every cut can be tried."""
    count = draw(st.integers(2, 9))
    numbers = st.integers(0, 20)
    seconds = [draw(numbers) / 4 for _ in range(count)]
    crossing = [draw(numbers) for _ in range(count)]
    places = [place for place in range(1, count) if draw(st.booleans())]
    filled = list(itertools.accumulate([draw(st.integers(0, 1)) for _ in range(count)], initial=0))
    return OperatorCosts(seconds, crossing, places, filled)


@given(graphs(), st.integers(1, 4))
def test_no_other_cut_is_better(costs: OperatorCosts, stages: int) -> None:
    count = len(costs.seconds)

    def slowest(cut: tuple[int, ...]) -> float:
        return max(sum(costs.seconds[low:high]) for low, high in itertools.pairwise((0, *cut, count)))

    def sent(cut: tuple[int, ...]) -> int:
        return sum(costs.crossing[place] for place in cut)

    cuts = [
        cut
        for cut in itertools.combinations(costs.places, stages - 1)
        if all(costs.filled[low] < costs.filled[high] for low, high in itertools.pairwise((0, *cut, count)))
    ]
    found = cut_operators(costs, stages)
    if not cuts:
        assert found is None
        return
    assert found in cuts
    limit = WORTH * min(map(slowest, cuts)) + 1e-9
    assert slowest(found) <= limit
    assert sent(found) == pytest.approx(min(sent(cut) for cut in cuts if slowest(cut) <= limit))
