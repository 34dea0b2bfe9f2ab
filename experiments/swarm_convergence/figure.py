"""The curves of the losses, as in SWARM's Figure 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from experiments.common.plot import quiet_pyplot, save
from experiments.common.rows import distinct

SMOOTHED = 10  # steps, of which a point is the mean
STYLES = ("-", "--", "-.", (0, (4, 4)), ":")  # curves that lie upon each other are seen all the same


def draw(path: Path, found: Mapping[tuple[str, str], Sequence[Sequence[float]]]) -> None:
    """Draw a panel a setting and a curve a policy, the mean of the seeds. found: losses of the steps, of each seed."""
    pyplot = quiet_pyplot()
    settings = distinct(setting for setting, _ in found)
    figure, panels = pyplot.subplots(
        1, len(settings), sharey=True, squeeze=False, figsize=(5.5 * len(settings), 4.2), layout="constrained"
    )
    for panel, setting in zip(panels[0], settings, strict=True):
        curves = {policy: losses for (of, policy), losses in found.items() if of == setting}
        for number, (policy, seeds) in enumerate(curves.items()):
            means = [fmean(losses) for losses in zip(*seeds, strict=True)]
            smooth = [fmean(means[max(0, step - SMOOTHED + 1) : step + 1]) for step in range(len(means))]
            panel.plot(smooth, label=policy, color=f"C{number}", linestyle=STYLES[number % len(STYLES)])
        panel.set_title(setting)
        panel.set_xlabel("step")
        panel.legend(fontsize=8)
    panels[0][0].set_ylabel(f"loss, mean of {SMOOTHED} steps")
    save(figure, path)
