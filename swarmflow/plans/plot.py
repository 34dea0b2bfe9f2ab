"""Plans as a picture: the machines on a ring, near ones side by side, their stages by colour, pipelines as lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from swarmflow.images import save_image
from swarmflow.planning.places import row_of
from swarmflow.plans.comparison import Planned
from swarmflow.plans.fleet import Fleet

CREATOR = "swarmflow plan"  # written into an image, because only an image with this mark may be overwritten
COLUMNS = 2


def plot(fleet: Fleet, found: Sequence[Planned], path: Path) -> None:
    """Draw the plans. Raises ConfigError when the file cannot be written."""
    from matplotlib import pyplot

    rows, columns = -(-len(found) // COLUMNS), min(COLUMNS, len(found))
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(5 * columns, 5 * rows), layout="constrained", squeeze=False
    )
    order = row_of(fleet.problem)
    turn = 2 * np.pi * np.argsort(order) / len(order)
    at = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    for panel in panels.flat:
        panel.set_axis_off()
    colours = pyplot.get_cmap("viridis", fleet.problem.stages)
    for panel, each in zip(panels.flat, found, strict=False):
        panel.set_aspect("equal")
        panel.set_title(f"{each.strategy}: {each.arrangement.cost_s:.4g} s")
        for pipeline in each.arrangement.pipelines:
            panel.plot(*at[list(pipeline)].T, color="0.7", linewidth=0.8, zorder=1)
        stages = [each.arrangement.stages.get(device, -1) for device in range(len(order))]
        served = [device for device, stage in enumerate(stages) if stage >= 0]
        drawn = panel.scatter(
            *at[served].T, c=[stages[device] for device in served], cmap=colours, zorder=2,
            vmin=-0.5, vmax=fleet.problem.stages - 0.5,
        )  # fmt: skip
        spare = [device for device, stage in enumerate(stages) if stage < 0]
        panel.scatter(*at[spare].T, marker="x", color="0.5", zorder=2)
    figure.colorbar(drawn, ax=panels, label="stage", ticks=range(fleet.problem.stages), shrink=0.6)
    save_image(figure, path, CREATOR)
