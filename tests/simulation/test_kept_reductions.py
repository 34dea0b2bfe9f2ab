"""A death amid an all-reduce redoes only the groups in which it took part: the others send each piece once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.report import SimulationReport
from tests.further import more
from tests.simulation.samples import scenario

STAGES, PEERS = 3, 9
SWARM = """
[run]
iterations = 2
[model]
stages = 3
microbatches = 9
activation_bytes = 1_000_000
parameters = 20_000_000
token_bytes = 0
delay = {delay}
[[peers]]
count = 9
spread = true
forward_s = 0.1
backward_s = 0.2
capacity = 4
up_mbps = 80
[network]
latency_s = 0.01
[churn]
trace = "churn.csv"
"""
PART = re.compile(r"^\s*(?P<seconds>[\d.]+) .*?p(?P<peer>\d+)\S* sends (?P<kind>ReducePart|ReduceSum) ")


def run(folder: Path, delay: int, leaves: str = "") -> tuple[SimulationReport, list[tuple[float, int]]]:
    """What a run gives, and (time, number of the sender) of each piece that was sent. leaves: lines of a trace."""
    (folder / "churn.csv").write_text(leaves or "100000,leave,0\n", encoding="utf-8")
    sent: list[tuple[float, int]] = []

    def see(line: str) -> None:
        if (found := PART.match(line)) is not None:
            sent.append((float(found["seconds"]), int(found["peer"])))

    report = Simulation(scenario(folder, SWARM.format(delay=delay)), 0, "swarmflow", see).run()
    assert (report.outcome, report.violations) == ("finished", ())
    return report, sent


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("dead", [0, 8, *more(4)])
def test_a_group_that_lost_nobody_reduces_once(tmp_path: Path, dead: int, delay: int) -> None:
    calm, sent = run(tmp_path, delay)
    times = [seconds for seconds, _ in sent if seconds < calm.iterations[0].seconds]
    amid_s = times[len(times) // 2]
    report, disturbed = run(tmp_path, delay, f"{amid_s},leave,{dead}\n")
    assert report.iterations[0].deaths == 1
    first, last = (
        Counter(peer % STAGES for seconds, peer in each if seconds < of.iterations[0].seconds)
        for each, of in ((sent, calm), (disturbed, report))
    )
    touched = dead % STAGES
    for stage in range(STAGES):
        if stage != touched:
            assert last[stage] == first[stage], f"stage {stage} has lost nobody"
    assert last[touched] > first[touched] / 2, "it began anew, with one member less"
    assert report.counts["reductions_kept"] == STAGES - 1
