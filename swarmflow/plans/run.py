"""Plans for a user: computes, prints, and writes files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from swarmflow.errors import ConfigError
from swarmflow.images import check_image
from swarmflow.ownership import check_file, is_object_with
from swarmflow.planning.bound import lower_bound_s
from swarmflow.planning.strategies import STRATEGIES
from swarmflow.plans.comparison import Planned, planned
from swarmflow.plans.cut_summary import cut_as_json, cut_summary
from swarmflow.plans.cutting import FoundCut
from swarmflow.plans.fleet import Fleet
from swarmflow.plans.plot import CREATOR, plot
from swarmflow.plans.summary import summary


@dataclass(frozen=True, slots=True)
class PlanFiles:
    """Files to write; None: not."""

    json: Path | None = None
    plot: Path | None = None


def check(files: PlanFiles) -> None:
    """Raise ForeignFileError for a file that may not be overwritten, ConfigError for an image of another format."""
    if files.json is not None:
        check_file(files.json, "--json", is_object_with("bound_s", "plans"))
    if files.plot is not None:
        check_image(files.plot, "--plot", CREATOR)


def main(fleet: Fleet, strategy: str, compare: bool, files: PlanFiles) -> None:
    """Plan by a strategy, or by all of them with that one first. Raises ConfigError where a file cannot be written."""
    problem = fleet.problem
    others = [each for each in STRATEGIES if each != strategy] if compare else []
    found = [planned(problem, each, fleet.seed) for each in (strategy, *others)]
    bound_s = lower_bound_s(problem)
    console = _console()
    for part in summary(fleet, found, bound_s):
        console.print(part, soft_wrap=isinstance(part, str))
    if files.json is not None:
        _write(files.json, as_json(fleet, found, bound_s))
    if files.plot is not None:
        plot(fleet, found, files.plot)


def check_cut_file(file: Path | None) -> None:
    """Raise ForeignFileError for a file of --json that may not be overwritten."""
    if file is not None:
        check_file(file, "--json", is_object_with("cut", "stages"))


def show_cut(found: FoundCut, file: Path | None) -> None:
    """Print a cut, and write it. Raises ConfigError where the file cannot be written."""
    console = _console()
    for part in cut_summary(found):
        console.print(part, soft_wrap=isinstance(part, str))
    if file is not None:
        _write(file, cut_as_json(found))


def as_json(fleet: Fleet, found: Sequence[Planned], bound_s: float) -> dict[str, Any]:
    """Return all figures, and the machines of each pipeline."""
    return {
        "machines": len(fleet.names),
        "bound_s": bound_s,
        "plans": [
            {
                "strategy": each.strategy,
                "cost_s": each.arrangement.cost_s,
                "gradients_s": each.arrangement.synchronised_s,
                "pipelines_s": each.arrangement.pipelined_s,
                "evaluated": each.evaluated,
                "planning_s": each.planning_s,
                "pipelines": [[fleet.names[device] for device in row] for row in each.arrangement.pipelines],
            }
            for each in found
        ],
    }


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)  # names of machines may look like markup


def _write(path: Path, found: dict[str, Any]) -> None:
    try:
        path.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
