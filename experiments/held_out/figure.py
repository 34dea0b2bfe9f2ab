"""The plot: a column a scenario, a mark a policy."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from experiments.common.plot import quiet_pyplot, save
from experiments.held_out.policies import ALL, OURS
from experiments.held_out.verdict import Results, ratios

MARKS = "o^sDv"


def draw_figure(path: Path, found: Mapping[str, Results]) -> None:
    """Draw the ratios of all scenarios, by name. Raises ConfigError when the file cannot be written."""
    pyplot = quiet_pyplot()
    figure, panel = pyplot.subplots(figsize=(max(6.0, 0.6 * len(found)), 6.0), layout="constrained")
    measured = [policy for policy in ALL if any(policy in results for results in found.values())]
    for number, policy in enumerate(measured):
        ours = policy in OURS
        values = [ratios(results)[policy] for results in found.values()]
        places = [place for place, value in enumerate(values) if isfinite(value)]
        style = {"marker": MARKS[number % len(MARKS)], "color": f"C{number}"}
        face = {} if ours else {"facecolors": "none", "edgecolors": f"C{number}"}
        panel.scatter(places, [values[place] for place in places], label=policy, **({**style, **face}))
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.set_yscale("log")
    panel.set_ylabel("time, by that of swarmflow's best router")
    panel.set_xticks(range(len(found)), list(found), rotation=30, ha="right")
    panel.set_title("Drawn scenarios: swarmflow (filled) and baselines (hollow)")
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    save(figure, path)
