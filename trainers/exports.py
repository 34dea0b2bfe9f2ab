"""The Hugging Face folders in a run's output: `final`, and `step-N`, of which the newest stay."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from swarmflow.compute.export import KIND
from swarmflow.drafts import clear_up
from swarmflow.files import tree_bytes
from swarmflow.ownership import Marker, check_replaceable, remove_replaceable

log = logging.getLogger("swarmflow")

_STEP = re.compile(r"step-(\d+)")


def final_folder(output: Path) -> Path:
    """Return the folder of the model when the run is finished."""
    return output / "final"


def step_folder(output: Path, version: int) -> Path:
    """Return the folder of the model after so many steps."""
    return output / f"step-{version}"


def clear_up_exports(output: Path, run: str) -> None:
    """Remove the files of killed exports of this run, and put back what they had moved. run: its id."""
    clear_up(output, rf"final|{_STEP.pattern}", run)


def check_exports(output: Path, run: str) -> None:
    """Raise ForeignFileError where other files are in the place of this run's exports. run: its id."""
    check_replaceable(final_folder(output), KIND, run)
    for path in _step_folders(output):
        marker = Marker.read(path)
        if marker is None or marker.run != run:  # changed files of its own exports are left alone, and logged then
            check_replaceable(path, KIND, run)


def check_unclaimed(output: Path) -> None:
    """Raise ForeignFileError where something is in the place of exports that no run of swarmflow has written so."""
    marker = Marker.read(final_folder(output))
    check_replaceable(final_folder(output), KIND, "" if marker is None else marker.run)
    for path in _step_folders(output):
        marker = Marker.read(path)
        if marker is None or marker.kind != KIND:  # changed files of own exports are left alone
            check_replaceable(path, KIND, "")


def prune_exports(output: Path, run: str, keep: int) -> None:
    """Remove the oldest `step-N` of this run, so that `keep` are left. Changed files in them stay."""
    for path in _step_folders(output)[keep:]:
        marker = Marker.read(path)
        if marker is not None and (marker.kind, marker.run) == (KIND, run) and marker.files:
            gone = remove_replaceable(path)
            log.info("%s is removed%s", path, "" if gone else ", but for what swarmflow did not write there")


def exports_bytes(output: Path) -> int:
    """Return the bytes of all `step-N` of an output; those that are being deleted may be missing."""
    return sum(map(tree_bytes, _step_folders(output)))


def _step_folders(output: Path) -> list[Path]:
    """Return the `step-N` of an output, the newest first."""
    found = [path for path in output.glob("step-*") if _STEP.fullmatch(path.name)]
    return sorted(found, key=lambda path: -int(path.name.removeprefix("step-")))
