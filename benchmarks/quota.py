"""Machines with a part of a processor each, all on this one: control groups and affinities (Linux, root)."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000  # a machine that has used up its part stands still for the rest of it, all of its processes


@contextmanager
def machines_of(cores: float, names: Sequence[str]) -> Iterator[None]:
    """Control groups of these names, each of which gets so much of a core (0.5: half of one). Raises OSError."""
    folders = [_folder(name) for name in names]
    made: list[Path] = []
    try:
        for folder in folders:
            folder.mkdir()
            made.append(folder)
            _limit(folder, round(cores * PERIOD_US))
        yield
    finally:
        for folder in made:
            _remove(folder)


def inside(name: str, number: int) -> tuple[str, ...]:
    """The command that runs a command in such a group, on one processor: groups of different numbers share them evenly.

    On several processors a group would lose a part of its quota: the kernel hands it out by slices of 5 ms to each
    processor, and what one of them has left is not there for a thread on another one (docs.kernel.org, CFS bandwidth
    control). A donor with 0.45 cores used 0.33 of them while it gave pieces beside its training.
    """
    processors = sorted(os.sched_getaffinity(0))
    place = processors[number % len(processors)]
    return ("sh", "-c", f'echo $$ > {_folder(name)}/cgroup.procs && exec taskset -c {place} "$@"', "sh")


def unavailable() -> str | None:
    """Why processors cannot be shared out here; None: they can."""
    folder = _folder("probe")
    if shutil.which("taskset") is None:
        return "giving each machine a part of a processor needs `taskset` (util-linux)"
    try:
        with machines_of(1.0, ["probe"]):
            return None
    except OSError as error:
        return f"giving each machine a part of a processor needs control groups: {folder}: {error.strerror}"


def _folder(name: str) -> Path:
    """Of a group, in version 1 or 2 of control groups, whichever has the controller of processors."""
    first = ROOT / "cpu"
    return (first if first.is_dir() else ROOT) / f"swarmflow-{name}"


def _remove(folder: Path) -> None:
    """Remove a group whose processes have ended, or are about to. Raises OSError where one stays for ten seconds."""
    last_s = time.monotonic() + 10.0
    while True:
        try:
            folder.rmdir()
            return
        except OSError:
            if time.monotonic() > last_s:
                raise
            time.sleep(0.1)


def _limit(folder: Path, quota_us: int) -> None:
    if (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_period_us").write_text(f"{PERIOD_US}")
        (folder / "cpu.cfs_quota_us").write_text(f"{quota_us}")
        return
    if not (folder / "cpu.max").exists():
        (ROOT / "cgroup.subtree_control").write_text("+cpu")
    (folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
