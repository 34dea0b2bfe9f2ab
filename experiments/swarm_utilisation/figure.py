"""Utilisation by latency beside Table 1, and the square-cube law."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.common.plot import quiet_pyplot, save
from experiments.common.rows import Row
from experiments.swarm_utilisation.cases import BUSY, LAYERS, MANY, PAPER, RATIO, RELATIVE, RTT_MS, UtilisationCase

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Left and middle: the paper's dashed, ours solid. Right: the law."""
    pyplot = quiet_pyplot()
    figure, (one, many, law) = pyplot.subplots(1, 3, figsize=(14, 4.6), layout="constrained")
    found = {(row.setting, row.policy, row.metric): row.mean for row in rows}
    _by_latency(one, found, 1, RELATIVE, "one microbatch at a time: relative utilisation")
    for number, layer in enumerate(LAYERS):
        one.plot(RTT_MS, PAPER[layer], color=f"C{number}", linestyle="--", marker="x", linewidth=1)
    _by_latency(many, found, MANY, BUSY, f"{MANY} in flight: share of the time that a GPU computes")
    points = [(int(row.setting.rpartition(" ")[2]), row.mean) for row in rows if row.metric == RATIO]
    law.loglog([width for width, _ in points], [ratio for _, ratio in points], marker="o")
    law.set_title("computation by communication, one microbatch", fontsize=9)
    law.set_xlabel("hidden size of the layer")
    save(figure, path)


def _by_latency(panel: Axes, found: dict[tuple[str, str, str], float], held: int, metric: str, title: str) -> None:
    for number, layer in enumerate(LAYERS):
        cases = [UtilisationCase(layer, rtt_ms, held) for rtt_ms in RTT_MS]
        keys = [(case.rtt_ms, (case.setting, case.policy, metric)) for case in cases]
        points = [(rtt_ms, found[key]) for rtt_ms, key in keys if key in found]
        panel.plot([x for x, _ in points], [y for _, y in points], color=f"C{number}", marker="o", label=layer)
    panel.set_title(title, fontsize=9)
    panel.set_xlabel("round trip, ms (dashed: the paper's Table 1)" if held == 1 else "round trip, ms")
    panel.set_ylabel("%")
    panel.set_ylim(0, 102)
    panel.legend(fontsize=8)
