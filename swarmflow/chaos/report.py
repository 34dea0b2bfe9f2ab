"""The report of the chaos command: the faults of each run, and their cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from swarmflow.chaos.compare import Comparison
from swarmflow.chaos.run import ChaosOutcome
from swarmflow.chaos.setup import Setup
from swarmflow.errors import CheckpointError
from swarmflow.ownership import is_object_with

_OTHERS = ("blocks", "full_disks", "corruptions", "spoils", "stalls")
_REPAIRS = {
    "resent": "resent",
    "adoptions": "adopted",
    "hops_lost": "lost",
    "steps_restarted": "redone",
    "rollbacks": "rollbacks",
    "successions": "heirs",
    "resynchronisations": "resyncs",
}


@dataclass(frozen=True)
class Result:
    """The result of a run at one rate."""

    seed: int | None  # None for the undisturbed run
    rate: float
    ended: ChaosOutcome | None  # None when the run did not finish
    comparison: Comparison | None  # None where there is no reference
    failure: str | None  # why the run failed or what it has learnt wrongly; None when it succeeded

    @property
    def name(self) -> str:
        """The name for people."""
        return "undisturbed" if self.seed is None else f"seed {self.seed}, rate {self.rate:g}"

    def shares(self, steps: int) -> tuple[float, float]:
        """Return the shares of all seconds that were lost with killed processes, and that living ones spent in vain.

        Steps that were rolled back and repeated were in vain too; each has cost what a commit costs on average.
        """
        if self.ended is None or not self.ended.compute.total_s:
            return float("nan"), float("nan")
        compute, commits = self.ended.compute, max(1, self.ended.commits)
        undone_s = (compute.total_s - compute.lost_s - compute.unused_s) * max(0, commits - steps) / commits
        return compute.lost_s / compute.total_s, (compute.unused_s + undone_s) / compute.total_s


is_report = is_object_with("runs", "lose_stage", "accumulate")


def show(results: list[Result], setup: Setup, console: Console) -> None:
    """Print three tables: the faults, the repairs of the swarm, and their cost."""
    columns = ("seed", "rate", "steps", "s", "kills", "stops", "drains", "others", "trainers", "learnt")
    done = Table(*columns, title="What was done", box=SIMPLE_HEAD, padding=0)  # fits 80 columns
    about = Table("seed", "rate", *_REPAIRS.values(), title="What the swarm did about it", box=SIMPLE_HEAD, padding=0)
    cost = Table(
        "seed",
        "rate",
        "recomputed",
        "undone",
        "s computed",
        "lost with the dead",
        "unused by the living",
        title="What that cost",
        box=SIMPLE_HEAD,
        padding=0,
    )
    for result in results:
        name = ("-" if result.seed is None else str(result.seed), f"{result.rate:g}")
        if (ended := result.ended) is None:
            done.add_row(*name, *["-"] * 7, "FAILED")
            continue
        counts = ended.counts
        trainers = f"{counts['trainers_hit']} ({counts['leaders_hit']})"
        learnt = "-" if result.comparison is None else "same" if result.failure is None else "DIFFERENT"
        blows = (str(counts[kind]) for kind in ("kills", "stops", "drains"))
        others = str(sum(counts[kind] for kind in _OTHERS))
        done.add_row(*name, str(ended.commits), f"{ended.seconds:.0f}", *blows, others, trainers, learnt)
        about.add_row(*name, *(f"{ended.repairs.get(kind, 0.0):.0f}" for kind in _REPAIRS))
        shares = (f"{share:.2%}" for share in result.shares(setup.steps))
        orphans = ended.repairs.get("orphans_subtracted", 0.0)
        cost.add_row(*name, f"{ended.hops:.0f}", f"{orphans:.0f}", f"{ended.compute.total_s:.1f}", *shares)
    for table in (done, about, cost):
        console.print(table)


def write(results: list[Result], setup: Setup, path: Path) -> None:
    """Write all figures as one JSON object (docs/chaos.md). Raises CheckpointError when the disk refuses."""
    fields: dict[str, Any] = {
        "steps": setup.steps,
        "stages": setup.stages,
        "peers": setup.peers,
        "trainers": setup.trainers,
        "accumulate": setup.accumulate,
        "codec": setup.codec,
        "lose_stage": setup.lose_stage,
        "runs": [_fields(result, setup.steps) for result in results],
    }
    try:
        path.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"--json {path} cannot be written: {error.strerror}") from None


def _fields(result: Result, steps: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"seed": result.seed, "rate": result.rate, "failure": result.failure}
    if result.comparison is not None:
        fields |= {"same": result.comparison.holds, "largest_difference": result.comparison.largest}
    if (ended := result.ended) is not None:
        lost, unused = result.shares(steps)
        fields |= {
            "seconds": round(ended.seconds, 3),
            "commits": ended.commits,
            "faults": dict(ended.counts),
            "repairs": ended.repairs,
            "recomputed_hops": ended.hops,
            "compute_seconds": ended.compute.total_s,
            "lost_with_the_dead": lost,
            "unused_by_the_living": unused,
        }
    return fields
