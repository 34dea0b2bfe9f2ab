"""Files that others find whole or not at all, whenever the machine stops; and disks that are full or corrupt them."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from swarmflow.errors import NoRoomError

log = logging.getLogger("swarmflow")

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SEAL = re.compile(rb"(.*)\n# ([0-9a-f]{32})\n", re.DOTALL)


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """A file NAME.*.tmp that takes the place of `path`, whole and on the disk, when the block ends well.

    private: only this user may ever read it, and nobody write. Raises OSError, as the block's writes do; then nothing
    is left of it, and `path` is as it was.
    """
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(draft, "xb", opener=_private if private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):  # the disk that refused to write may refuse this too
            draft.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Give a file this content. private: only this user may ever read it, and nobody write. Raises OSError."""
    with replacing(path, private=private) as file:
        file.write(data)


def write_named(path: Path, data: bytes) -> None:
    """Give what a person named this content: a file, the file that a link leads to, or a pipe or terminal.

    A pipe is written to once somebody reads from it, while this process lives. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    if not path.exists() or path.is_file():
        write_whole(path, data)
    elif path.is_fifo():
        threading.Thread(target=_into_pipe, args=(path, data), name=f"writing to {path.name}", daemon=True).start()
    else:
        path.write_bytes(data)


def _into_pipe(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o400)


# --- small files in which a flipped bit would be believed -------------------------------------------------------------


def write_sealed(path: Path, data: bytes) -> None:
    """Give a file this content, with its digest in a last line. Raises OSError."""
    write_whole(path, data + b"\n# " + _digest(data) + b"\n")


def read_sealed(path: Path, *, mend: bool = True) -> bytes | None:
    """What write_sealed wrote; None: it is not there, or corrupt: changed, cut short, or written by something else.

    mend: what is corrupt is told of and set aside; else it stays as it is. Raises OSError.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    sealed = _SEAL.fullmatch(content)
    if sealed is not None and _digest(sealed[1]) == sealed[2]:
        return sealed[1]
    if mend:
        log.warning("%s is corrupt; it is kept as %s", path, set_aside(path).name)
    return None


def set_aside(path: Path) -> Path:
    """Give a corrupt file or folder a name under which nobody looks for it; the new path. Raises OSError."""
    number, aside = 1, path.with_name(f"{path.name}.corrupt")
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.corrupt.{number}")
    path.rename(aside)
    return aside


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()


# --- room -------------------------------------------------------------------------------------------------------------


def require_room(what: str, folder: Path, needed_bytes: int) -> None:
    """Raises NoRoomError where a folder's file system has less room than something needs."""
    free = free_bytes(folder)
    if free < needed_bytes:
        raise no_room(what, folder, needed_bytes)


def no_room(what: str, folder: Path, needed_bytes: int, why: str = "") -> NoRoomError:
    """The error of a disk that is full, or that lets this user write no more: then why says what the system says."""
    free = free_bytes(folder)
    lacks = f": make {in_words(needed_bytes - free)} free there" if needed_bytes > free else f", but: {why}"
    line = f"{what} needs {in_words(needed_bytes)} in {folder}, where {in_words(free)} are free{lacks}"
    return NoRoomError(line, str(folder), needed_bytes, free)


def existing_parent(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write on the file system of a path, which need not be there yet."""
    return shutil.disk_usage(existing_parent(path)).free


def in_words(size_bytes: int) -> str:
    """A size for people: `812 bytes`, `3.4 MB`, `1.2 GB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} bytes"
