"""What `swarmflow simulate` prints, on a terminal of 80 columns."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from rich.console import Console

from swarmflow.forecast.summary import summary
from swarmflow.simulator.measure import Meter
from swarmflow.simulator.report import DeviceUse, SimulationReport
from tests.simulation.samples import CHURN, simulated

COLUMNS = 80


def printed(report: SimulationReport) -> list[str]:
    console = Console(width=COLUMNS, highlight=False)
    with console.capture() as capture:
        for part in summary(report, Meter(), 1.0):
            console.print(part, soft_wrap=isinstance(part, str))
    return capture.get().splitlines()


def test_all_of_it_fits_and_is_whole(tmp_path: Path) -> None:
    _, report = simulated(tmp_path, CHURN)
    lines = printed(report)
    assert max(map(len, lines)) <= COLUMNS
    assert not any("…" in line for line in lines)
    row = next(line for line in lines if line.startswith("  8 ")).split()
    last = report.iterations[-1]
    assert row[0] == "8"
    assert float(row[1]) == pytest.approx(last.seconds, rel=0.005), "three digits"
    assert row[-2] == f"{last.deaths}/{last.joins}/{last.moves}"
    assert any(line.startswith("  bottleneck: ") for line in lines)
    assert any(line.split()[:1] == ["Forward"] for line in lines)


def test_a_large_swarm_fits_too(tmp_path: Path) -> None:
    _, report = simulated(tmp_path, CHURN)
    large = dataclasses.replace(
        report.iterations[-1],
        number=9999,
        seconds=123_456.7,
        microbatches_a_minute=99_999.9,
        communication_s=12_345.6,
        useful_s=1.23e9,
        wasted_s=9.87e8,
        lost_s=9.99e6,
        utilisation=1.0,
        peers=10_100,
        deaths=123,
        joins=123,
        moves=56,
        wire_bytes=123_456 * 10**9,
    )
    device = DeviceUse("p1.1", 1234, 1e6, 1e6)
    report = dataclasses.replace(
        report,
        iterations=(large,) * 30,
        devices=(device,) * 10_000,
        peer_seconds=1.0,
        messages=dict.fromkeys(report.messages, 10**9),
        wire_bytes=dict.fromkeys(report.messages, 10**14),
    )
    lines = printed(report)
    assert max(map(len, lines)) <= COLUMNS
    assert not any("…" in line for line in lines)
    assert sum("9999 " in line for line in lines) == 24
