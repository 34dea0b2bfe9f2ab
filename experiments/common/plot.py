"""Rows as bars: a panel a metric, a group a setting, a bar a policy."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from experiments.common.rows import Row, distinct
from swarmflow.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = (8.0, 2.6)


def bars(path: Path, title: str, rows: Sequence[Row], metrics: Sequence[str]) -> None:
    """Draw it; what the paper reports is a black mark. Raises ConfigError when the file cannot be written."""
    pyplot = quiet_pyplot()
    settings = distinct(row.setting for row in rows)
    policies = distinct(row.policy for row in rows)
    width, height = PANEL_INCHES
    size = (max(width, 1.3 * len(settings)), height * len(metrics) + 0.6)
    figure, panels = pyplot.subplots(len(metrics), 1, sharex=True, squeeze=False, figsize=size, layout="constrained")
    for panel, metric in zip(panels[:, 0], metrics, strict=True):
        for number, policy in enumerate(policies):
            shown = [row for row in rows if (row.metric, row.policy) == (metric, policy)]
            _bars(panel, shown, settings, number, len(policies), policy)
        panel.set_ylabel(metric)
        panel.set_ylim(bottom=0)
    panels[-1, 0].set_xticks(range(len(settings)), settings, rotation=20, ha="right")
    panels[0, 0].set_title(title)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(policies))
    save(figure, path)


def _bars(panel: Axes, rows: Sequence[Row], settings: list[str], number: int, of: int, policy: str) -> None:
    wide = 0.8 / of
    places = [settings.index(row.setting) + (number - (of - 1) / 2) * wide for row in rows]
    spread = [row.std for row in rows]
    panel.bar(places, [row.mean for row in rows], wide, yerr=spread, capsize=2, label=policy, color=f"C{number}")
    marked = [(place, row.paper) for place, row in zip(places, rows, strict=True) if row.paper is not None]
    panel.scatter([place for place, _ in marked], [paper for _, paper in marked], marker="_", color="black", zorder=3)


def quiet_pyplot() -> ModuleType:
    """matplotlib's pyplot, drawing into files only."""
    import matplotlib

    matplotlib.use("agg")  # no window system is needed
    return import_module("matplotlib.pyplot")


def save(figure: Figure, path: Path) -> None:
    """Write a figure and forget it. Raises ConfigError when the file cannot be written."""
    try:
        figure.savefig(path, dpi=120, metadata={"Software": None})
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    finally:
        quiet_pyplot().close(figure)
