"""FusionLLM's Figures 10 and 11: its testbeds, the cut of the modules, and what compression does to an iteration."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest

from experiments.adatopk_latency import schedules
from experiments.adatopk_latency.__main__ import COMPRESSIONS, measured, scenario
from experiments.adatopk_latency.schedules import MODULES, SCHEDULES, balanced, equal_number
from experiments.adatopk_latency.testbed import SMALL, TESTBEDS, Testbed, links
from swarmflow.simulator.scenario import load

Testbed.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a class of tests


def test_the_testbeds_are_the_paper_s() -> None:
    assert [len(testbed.gpus) for testbed in TESTBEDS] == [24, 48]
    assert [len(testbed.machines) for testbed in TESTBEDS] == [5, 10]
    of = links(TESTBEDS[1], 3)
    assert of == links(TESTBEDS[1], 3) != links(TESTBEDS[1], 4)
    rates = [rate for row in of.mbps for rate in row]
    assert 8 <= min(rates) < 20
    assert max(rates) == 10_000


@pytest.mark.parametrize("stages", [6, 24, 48])
def test_every_module_has_one_stage(stages: int) -> None:
    for cut in (equal_number(stages), balanced([1.0] * stages)):
        assert len(cut) == stages
        assert sum(cut) == pytest.approx(sum(MODULES))


def test_no_cut_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    modules, speeds = (0.0, 3.0, 3.0, 2.0, 3.0, 1.0, 7.0), (2.0, 1.0, 4.0)
    monkeypatch.setattr(schedules, "MODULES", modules)
    found = balanced(speeds)
    every = (
        [sum(modules[first:stop]) for first, stop in pairwise((0, *ends, len(modules)))]
        for ends in combinations(range(1, len(modules)), len(speeds) - 1)
    )
    least = min(max(work / speed for work, speed in zip(cut, speeds, strict=True)) for cut in every)
    assert max(work / speed for work, speed in zip(found, speeds, strict=True)) == least


def test_compression_saves_time_and_the_adaptive_one_sends_more() -> None:
    of = links(SMALL, 0)
    schedule = SCHEDULES["equal number"](SMALL, of, 0)
    plain, uniform, adaptive = (measured(scenario(SMALL, of, schedule, each), 0) for each in COMPRESSIONS[:3])
    assert uniform[0] <= adaptive[0] < plain[0] / 3
    assert uniform[1] < adaptive[1] < plain[1] == 1.0


def test_the_file_alone_is_a_scenario() -> None:
    assert load(Path(schedules.__file__).with_name("scenario.toml")).run.slowest_ratio == 33.3
