"""The picture of a run: its loss, its throughput and its peers over time, with the moments that a reader should see."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmflow.errors import SwarmflowError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Step = Mapping[str, Any]  # a line of docs/json-log.md

INCHES = (10.0, 7.4)
DPI = 150
LABEL_CHARACTERS = 44  # in a line
SMOOTH_STEPS = 9  # of the line through the losses, which are noisy
# Okabe and Ito's colours, told apart by colour-blind people; dashes and symbols say the same without colour.
BLUE, SKY, GREEN, VERMILION = "#0072B2", "#56B4E9", "#007A5A", "#C24E00"
INK, FAINT, GRID = "#222222", "#8A8A8A", "#E4E4E4"


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of the run. time: s since 1970. kind: killed, repaired or joined. label: a few words, a line or two."""

    time: float
    kind: str
    label: str


_MARKS = {"killed": (VERMILION, "-", "X"), "repaired": (GREEN, "--", "P"), "joined": (BLUE, ":", "^")}


def draw(steps: Sequence[Step], marks: Sequence[Mark], title: str, path: Path) -> None:
    """Write a PNG of the committed steps (docs/json-log.md). Raises SwarmflowError when there is no way to."""
    try:
        import matplotlib
    except ImportError as error:
        raise SwarmflowError("the picture needs matplotlib: pip install matplotlib") from error
    matplotlib.use("agg")  # no window system is needed
    from matplotlib import pyplot

    began_s = steps[0]["time"] - steps[0]["seconds"]
    times = [step["time"] - began_s for step in steps]
    style = {"font.size": 10.5, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": FAINT}
    with pyplot.rc_context({**style, "text.color": INK, "axes.labelcolor": INK, "axes.grid": False}):
        figure, (losses, rates, peers) = pyplot.subplots(
            3, 1, sharex=True, figsize=INCHES, layout="constrained", height_ratios=(3.2, 2.2, 1.8)
        )
        figure.suptitle(title, x=0.01, ha="left", fontsize=15, fontweight="bold")
        _draw_losses(losses, times, steps)
        _draw_rates(rates, times, steps)
        _draw_peers(peers, times, steps)
        _draw_marks((losses, rates, peers), [(mark.time - began_s, mark) for mark in marks], times[-1])
        peers.set_xlabel("seconds since the first step began")
        peers.set_xlim(0.0, times[-1])
        try:
            figure.savefig(path, dpi=DPI, metadata={"Software": "swarmflow demo"})
        except OSError as error:
            raise SwarmflowError(f"the picture cannot be written to {path}: {error.strerror}") from error
        finally:
            pyplot.close(figure)


def smooth(values: Sequence[float], width: int = SMOOTH_STEPS) -> list[float]:
    """Return the mean of each value and its neighbours, fewer of them at both ends."""
    half = width // 2
    windows = (values[max(0, at - half) : at + half + 1] for at in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _draw_losses(axes: Axes, times: Sequence[float], steps: Sequence[Step]) -> None:
    known = [(time_s, step["loss"]) for time_s, step in zip(times, steps, strict=True) if step["loss"] is not None]
    axes.set_title("Loss, nats a token", loc="left", fontsize=11)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    if not known:
        return
    at = [time_s for time_s, _ in known]
    losses = [loss for _, loss in known]
    line = smooth(losses)
    axes.plot(at, losses, ".", color=SKY, markersize=5)
    axes.plot(at, line, color=BLUE, linewidth=2.2)
    axes.annotate(f"{line[-1]:.2f}", (at[-1], line[-1]), (6, 0), textcoords="offset points", va="center")


def _draw_rates(axes: Axes, times: Sequence[float], steps: Sequence[Step]) -> None:
    rates = [step["tokens"] / max(step["seconds"], 1e-9) for step in steps]
    axes.set_title("Throughput, tokens a second", loc="left", fontsize=11)
    axes.step([0.0, *times], [rates[0], *rates], where="pre", color=BLUE, linewidth=1.4)
    axes.fill_between([0.0, *times], [rates[0], *rates], step="pre", color=SKY, alpha=0.35, linewidth=0)
    axes.set_ylim(0.0, 1.15 * max(rates))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="y", color=GRID, linewidth=0.8)


def _draw_peers(axes: Axes, times: Sequence[float], steps: Sequence[Step]) -> None:
    """Draw a bar a peer, as long as so many peers of the stage took part in the steps."""
    stages = len(steps[0]["peers"])
    most = max(count for step in steps for count in step["peers"])
    axes.set_title("Peers that took part, by stage", loc="left", fontsize=11)
    for stage, rank in product(range(stages), range(most)):
        low = stages - 1 - stage + 0.1 + rank * 0.8 / most
        high = [low + 0.66 / most] * (len(times) + 1)
        there = [step["peers"][stage] > rank for step in steps]
        axes.fill_between([0.0, *times], low, high, where=[there[0], *there], step="pre", color=BLUE, alpha=0.75, lw=0)
    axes.set_ylim(0.0, stages)
    axes.set_yticks([stages - 0.5 - stage for stage in range(stages)], [f"stage {stage}" for stage in range(stages)])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _draw_marks(panels: Sequence[Axes], marks: Sequence[tuple[float, Mark]], end_s: float) -> None:
    """Draw a line a mark through all panels, and its label in the first one: the later the mark, the lower."""
    above = panels[0].get_xaxis_transform()  # x: seconds; y: share of the height
    for number, (time_s, mark) in enumerate(sorted(marks, key=lambda entry: entry[0])):
        colour, dashes, symbol = _MARKS[mark.kind]
        for axes in panels:
            axes.axvline(time_s, color=colour, linestyle=dashes, linewidth=1.6, zorder=3)
        height = 0.95 - 0.14 * number
        panels[0].plot([time_s], [height], symbol, color=colour, markersize=9, transform=above, zorder=5)
        rightwards = time_s < 0.65 * end_s
        panels[0].annotate(
            textwrap.fill(mark.label, LABEL_CHARACTERS),
            (time_s, height),
            (12 if rightwards else -12, 0),
            xycoords=above,
            textcoords="offset points",
            ha="left" if rightwards else "right",
            va="center",
            color=colour,
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 2.0},
            zorder=4,
        )
