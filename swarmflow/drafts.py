"""Folders that are made beside their place and renamed into it; what is left of them where their maker was killed."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from swarmflow.ownership import Marker, check_replaceable, remove_replaceable

log = logging.getLogger("swarmflow")

DRAFT = "draft"
UNTOUCHED_S = 3600.0  # after which a draft of another machine, or of before this one was started again, is nobody's


@contextmanager
def draft_of(out: Path, run: str) -> Iterator[Path]:
    """A new folder beside `out`, to be filled and given to `move_into_place`; removed at the end. run: its id.

    What processes that were killed have left of others is cleared up first. Raises OSError.
    """
    clear_up(out.parent, re.escape(out.name), run)
    draft = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.part")
    draft.mkdir(parents=True)
    try:
        with _locked(draft):
            Marker(DRAFT, run, _machine()).write(draft)
            yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def move_into_place(draft: Path, out: Path, kind: str, run: str) -> None:
    """Rename a sealed draft to `out`, and remove what was there. Raises ForeignFileError, OSError."""
    check_replaceable(out, kind, run)  # once more: writing has taken its time
    old = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.old")
    if not out.exists() or not any(out.iterdir()):
        os.replace(draft, out)
        return
    with _locked(out):  # so that nobody puts it back meanwhile
        out.rename(old)
        os.replace(draft, out)
        if not remove_replaceable(old):
            log.warning("something that swarmflow did not write was in %s: it is in %s now", out, old)


def clear_up(folder: Path, names: str, run: str) -> None:
    """Remove drafts of the folders of these names (a pattern) whose maker was killed, and put back what it had moved.

    Only what is marked as this run's is touched. A disk that refuses is told of.
    """
    pattern = re.compile(rf"\.({names})\.[0-9a-f]{{8}}\.(part|old)")
    try:
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            match = pattern.fullmatch(path.name)
            if match is None or path.is_symlink() or not path.is_dir():
                continue
            with _locked(path) as held:
                if held:
                    _clear(path, folder / match[1], match[match.re.groups] == "old", run)
    except OSError as error:
        log.warning("what a killed process left in %s is not cleared up: %s", folder, error.strerror or error)


def _clear(path: Path, out: Path, moved: bool, run: str) -> None:
    marker = Marker.read(path)
    if marker is not None and marker.run != run:
        return
    if not moved:
        if _is_abandoned(path, marker):
            shutil.rmtree(path)
            log.info("%s is removed: whoever wrote it was killed", path)
    elif marker is not None and not os.path.lexists(out):
        path.rename(out)
        log.warning("%s is put back: whoever was to replace it was killed", out)
    elif marker is not None:
        remove_replaceable(path)


def _is_abandoned(draft: Path, marker: Marker | None) -> bool:
    """Whether the maker of a draft that is not locked is gone: locks may not hold between machines."""
    if marker is None:  # made just now, or cut short in its first moment
        return _untouched_s(draft) > UNTOUCHED_S and not any(draft.iterdir())
    return (marker.kind, marker.content) == (DRAFT, _machine()) or _untouched_s(draft) > UNTOUCHED_S


def _untouched_s(folder: Path) -> float:
    times = [folder.stat().st_mtime]
    for parent, _, files in os.walk(folder):
        times += [os.lstat(os.path.join(parent, name)).st_mtime for name in files]
    return time.time() - max(times)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the system's lock on a folder, under whatever name; whether it could be had."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        held = False
        with suppress(OSError):  # another process has it, or the file system has no locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        yield held
    finally:
        os.close(handle)


def _machine() -> str:
    """Of processes that share a kernel, and with it its locks."""
    # Linux alone has such an id: the time of its start, which every system tells, changes with the clock.
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()
