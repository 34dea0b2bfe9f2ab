"""The scenarios of the utilisation: what one microbatch takes can be added up by hand."""

from __future__ import annotations

import math

import pytest

from experiments.swarm_utilisation.cases import (
    BUSY,
    LAYERS,
    PAPER,
    RELATIVE,
    RTT_MS,
    WAITING,
    UtilisationCase,
    rows,
    run,
    scenario,
    slope,
    square_cube,
    table_1,
)
from tests.further import more

BYTES_PER_S = 500e6 / 8
WIDTH = {"base": 768, "xxlarge": 4096, "GPT-3": 12288, "Ours": 4096}
COMPUTED_S = {"base": 0.066, "xxlarge": 0.568, "GPT-3": 5.317, "Ours": 7.059}


@pytest.mark.parametrize("layer", ["base", *more(*(layer for layer in LAYERS if layer != "base"))])
def test_one_microbatch_takes_its_computing_22_tensors_and_12_round_trips(layer: str) -> None:
    case = UtilisationCase(layer, 100, 1)
    scene = scenario(case, quick=True)
    report = run(scene, 0)
    tensor_bytes = 512 * WIDTH[layer] * (1 if layer == "Ours" else 2)
    expected_s = COMPUTED_S[layer] + 22 * tensor_bytes / BYTES_PER_S + 12 * 0.1
    seconds = report.over(lambda iteration: iteration.seconds)[0] / scene.model.microbatches
    assert seconds == pytest.approx(expected_s, rel=0.02), "and the little that opening and closing a step takes"
    found = {row.metric: row for row in rows(case, scene, report)}
    assert found[RELATIVE].mean == pytest.approx(100 * COMPUTED_S[layer] / expected_s, rel=0.02)
    assert found[RELATIVE].paper == PAPER[layer][RTT_MS.index(100)]
    assert found[BUSY].mean == pytest.approx(found[RELATIVE].mean / 12)
    assert WAITING not in found, "the paper has it without latency only"


def test_settings_are_named_as_in_the_table() -> None:
    settings = {case.setting for case in table_1(quick=False)}
    assert len(settings) == 20
    assert {"base, none", "GPT-3, 50ms", "Ours, 200ms"} <= settings


def test_twice_the_width_is_twice_the_computation_by_communication() -> None:
    found = list(square_cube(0, widths=(1024, 2048)))
    assert found[1].mean / found[0].mean == pytest.approx(2.0, rel=0.01)
    assert found[2].mean == pytest.approx(1.0, abs=0.01)


def test_the_slope_of_a_line() -> None:
    assert slope([(x, 3 * x - 1) for x in (0.0, 1.0, 5.0)]) == pytest.approx(3.0)
    assert slope([(math.log(n), math.log(n**3 / n**2)) for n in (2, 3, 50)]) == pytest.approx(1.0)
