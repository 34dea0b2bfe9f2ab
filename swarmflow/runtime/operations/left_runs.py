"""How the trainers of this machine left their runs: a small file for each run, for `swarmflow status`."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from swarmflow.decoding import UNDECODABLE
from swarmflow.files import write_whole
from swarmflow.runtime.transport.invite import runs_folder

RECORDS_MAX = 64  # files that are kept, the newest ones
RECORD_BYTES_MAX = 1 << 16  # of a file; a longer one was not written here, and is not read


@dataclass(frozen=True, slots=True)
class LeftRun:
    """How a trainer of this machine left its run, which may go on without it."""

    run_id: str
    name: str
    version: int  # steps that were committed when it left
    steps: int  # that the run is to have
    output: str  # the folder of `[run] output` in RUN.toml, absolute
    finished: bool = False  # all steps are committed, and the model is in `final` of the output; else the leader has it

    def __str__(self) -> str:
        where = self.output
        if self.finished:
            return f"run {self.name} has ended at step {self.version} of {self.steps}: the result is in {where}/final"
        if self.version >= self.steps:
            return f"run {self.name} has ended at step {self.version} of {self.steps}: its leader has the result"
        return f"the trainer of this machine left run {self.name} at step {self.version} of {self.steps}, see {where}"


def write_left(left: LeftRun, folder: Path | None = None) -> None:
    """Write the record of a run, replacing an earlier one of the same run. Raises OSError.

    folder: where this machine keeps what it knows of its runs; None: the usual place.
    """
    path = _path(left.run_id, folder)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, msgspec.json.encode(left))
    for old in _own_records(folder)[:-RECORDS_MAX]:
        old.unlink(missing_ok=True)


def forget_left(run_id: str, folder: Path | None = None) -> None:
    """Delete the record of a run that the trainer of this machine has joined again."""
    with suppress(OSError):  # the record of a run that goes on is wrong, which is no reason to end its trainer
        _path(run_id, folder).unlink(missing_ok=True)


def left_run(run_id: str, folder: Path | None = None) -> LeftRun | None:
    """Return how the trainer of this machine left a run; None: there was none, or it is still there."""
    return _read(_path(run_id, folder))


def last_left(folder: Path | None = None) -> LeftRun | None:
    """Return the run that a trainer of this machine left last."""
    records = _own_records(folder)
    return _read(records[-1]) if records else None


def _own_records(folder: Path | None) -> list[Path]:
    """Return the readable records of this user, the oldest first; what others have put there is left alone."""
    paths = sorted(_records_folder(folder).glob("*.json"), key=_changed_s)
    return [path for path in paths if _read(path) is not None]


def _records_folder(folder: Path | None) -> Path:
    return (runs_folder() if folder is None else folder) / "ended"


def _path(run_id: str, folder: Path | None) -> Path:
    return _records_folder(folder) / f"{run_id}.json"


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # deleted meanwhile
        return 0.0


def _read(path: Path) -> LeftRun | None:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():  # the folder may lie where others can write
                return None
            return msgspec.json.decode(file.read(RECORD_BYTES_MAX), type=LeftRun)
    except (OSError, *UNDECODABLE):
        return None  # no file, one of another release, or one that was cut off
