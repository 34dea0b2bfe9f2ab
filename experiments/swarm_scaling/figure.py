"""Throughput by the number of peers, and what decisions cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.common.plot import quiet_pyplot, save
from experiments.swarm_scaling.cases import FIGURE_6, ScalingResult


def draw(path: Path, found: Sequence[ScalingResult]) -> None:
    """Figure 6, the same beyond, and the costs."""
    pyplot = quiet_pyplot()
    figure, (paper, larger, costs) = pyplot.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    small = [each for each in found if each.peers <= FIGURE_6]
    for panel, some, title in ((paper, small, "Figure 6: 8 to 128 peers"), (larger, found, "and beyond")):
        peers = [each.peers for each in some]
        panel.plot(peers, [each.best for each in some], linestyle="--", color="grey", label="best case")
        panel.plot(peers, [each.throughput for each in some], marker="o", label="swarmflow")
        panel.set_title(title)
        panel.set_xlabel("peers")
        panel.set_ylabel("microbatches a second")
        panel.legend()
    sizes = [each.peers for each in found]
    for label, values in (
        ("messages a peer and second", [each.metered.peers.messages / each.peers / each.virtual_s for each in found]),
        ("CPU of a peer's decision, us", [1e6 * _each(each.metered.peers.cpu_s, each) for each in found]),
        ("leader: CPU a second, ms", [1e3 * each.metered.leader.cpu_s / each.virtual_s for each in found]),
    ):
        costs.loglog(sizes, values, marker="o", label=label)
    costs.set_title("what decisions cost")
    costs.set_xlabel("peers")
    costs.legend()
    save(figure, path)


def _each(cpu_s: float, found: ScalingResult) -> float:
    return cpu_s / found.metered.peers.decisions
