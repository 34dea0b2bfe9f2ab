"""The runs of this machine: live ones, where their trainers answer, and how the others ended."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from swarmflow.files import write_whole
from swarmflow.runtime.transport.invite import runs_folder

ENDED_KEPT = 64
ENDED_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class EndedRun:
    """How a trainer of this machine left its run."""

    run_id: str
    name: str
    version: int  # steps that were committed then
    steps: int
    output: str  # [run] output
    finished: bool = False  # all steps are done, and the model is in the folder `final` of the output
    time_s: float = 0.0

    def __str__(self) -> str:
        where = self.output
        if self.finished:
            return f"run {self.name} has ended at step {self.version} of {self.steps}: the result is in {where}/final"
        if self.version >= self.steps:
            return f"run {self.name} has ended at step {self.version} of {self.steps}: its leader has the result"
        return f"the trainer of this machine left run {self.name} at step {self.version} of {self.steps}, see {where}"


def keep_ended(ended: EndedRun, folder: Path | None = None) -> None:
    """Keep it for `swarmflow status`, in place of an earlier one of the run. Raises OSError."""
    path = _path(ended.run_id, folder)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fields = {field: getattr(ended, field) for field in EndedRun.__slots__} | {"time_s": time.time()}
    write_whole(path, msgspec.json.encode(fields))
    others = [other for other in sorted(path.parent.glob("*.json"), key=_changed_s) if _read(other) is not None]
    for old in others[:-ENDED_KEPT]:
        old.unlink(missing_ok=True)


def forget_ended(run_id: str, folder: Path | None = None) -> None:
    """Forget the end of a run that goes on."""
    with suppress(OSError):
        _path(run_id, folder).unlink(missing_ok=True)


def ended_run(run_id: str, folder: Path | None = None) -> EndedRun | None:
    """Return how a run ended on this machine, if that is known."""
    return _read(_path(run_id, folder))


def last_ended(folder: Path | None = None) -> EndedRun | None:
    """Return the run that ended last on this machine."""
    paths = sorted(_path("", folder).parent.glob("*.json"), key=_changed_s)
    return next((found for path in reversed(paths) if (found := _read(path)) is not None), None)


def _path(run_id: str, folder: Path | None) -> Path:
    base = runs_folder() if folder is None else folder
    return base / "ended" / f"{run_id}.json"


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path) -> EndedRun | None:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            return msgspec.json.decode(file.read(ENDED_BYTES_MAX), type=EndedRun)
    except (OSError, msgspec.DecodeError):
        return None  # no file, or one of another version
