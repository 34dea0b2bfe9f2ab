"""A report as an image: the duration of each iteration, and how much of the computing was useful."""

from __future__ import annotations

from pathlib import Path

from swarmflow.images import save_image
from swarmflow.simulator.report import SimulationReport

CREATOR = "swarmflow simulate"  # written into an image, because only an image with this mark may be overwritten


def plot(report: SimulationReport, path: Path) -> None:
    """Draw a report. Raises ConfigError when the file cannot be written."""
    from matplotlib import pyplot

    rows = report.iterations
    numbers = [row.number for row in rows]
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6), layout="constrained")
    above.plot(numbers, [row.seconds for row in rows], marker="o", color="tab:blue")
    above.set_ylabel("seconds an iteration")
    above.set_ylim(bottom=0)
    above.set_title(f"{report.scenario}, policy {report.policy}, seed {report.seed}")
    bottoms = [0.0] * len(rows)
    for label, colour, values in (
        ("useful", "tab:green", [row.useful_s for row in rows]),
        ("twice, for want of memory", "tab:blue", [row.twice_s for row in rows]),
        ("in vain, living peers", "tab:orange", [row.wasted_s for row in rows]),
        ("lost with the dead", "tab:red", [row.lost_s for row in rows]),
    ):
        below.bar(numbers, values, bottom=bottoms, label=label, color=colour)
        bottoms = [bottom + value for bottom, value in zip(bottoms, values, strict=True)]
    below.set_ylabel("seconds computed")
    below.set_xlabel("iteration")
    figure.legend(loc="outside lower center", ncols=3)
    save_image(figure, path, CREATOR)
