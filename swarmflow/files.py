"""Files that others find whole or not at all, whenever the machine stops; corrupt files, and full disks."""

from __future__ import annotations

import errno
import fcntl
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

NO_ROOM_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # a full disk, a quota, a limit of file sizes
_SEALED = re.compile(rb"(.*)\n# ([0-9a-f]{32})\n", re.DOTALL)  # content, and its digest as a comment of TOML


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Yield a new file; when the block ends without an error, it replaces `path` and is on the disk.

    Until then it is NAME.*.tmp, which is removed on an error, unless the disk refuses that too. private: mode 0400 from
    its creation on. Raises OSError, as the block's writes do; then `path` is as it was.
    """
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(draft, "xb", opener=_open_private if private else None) as file:
            yield file
            file.flush()
            sync_to_disk(file.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):  # after the replacement it does not exist; a disk that refuses writes may refuse this
            draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_to_disk(handle: int) -> None:
    """Return once what was written to an open file is on the disk. Raises OSError."""
    # On macOS, fsync leaves the data in the drive's own cache, which a power cut empties.
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with suppress(OSError):  # network file systems know fsync alone
            fcntl.fcntl(handle, full)
            return
    os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Bring new names in a folder to the disk, so that a power cut does not undo them. Raises OSError."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(number)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o400)  # who creates a file may write to it, whatever its mode


def write_whole(path: Path, data: bytes, *, private: bool = False) -> None:
    """Replace a file by this content. private: mode 0400 from its creation on. Raises OSError."""
    with replacing(path, private=private) as file:
        file.write(data)


def write_to_user_path(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write to a path that the user gave: a file, the file that a link leads to, a pipe or a terminal.

    Does not wait for the reader of a pipe: a thread writes, what nobody has read when this process ends is lost, and
    an error is logged. private: of a file, as `write_whole`. Raises OSError for everything else.
    """
    if path.is_fifo():  # /dev/stdout may be one; where that leads to has no path
        threading.Thread(target=_into_pipe, args=(path, data), name=f"writing to {path.name}", daemon=True).start()
    elif path.exists() and not path.is_file():
        path.write_bytes(data)
    else:
        write_whole(Path(os.path.realpath(path)), data, private=private)


def _into_pipe(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)


# --- small files that are checked against a digest when they are read -------------------------------------------------


def write_sealed(path: Path, data: bytes, *, private: bool = False) -> None:
    """Give a file this content, with its digest in a last line. private: as `write_whole`. Raises OSError."""
    write_whole(path, data + b"\n# " + _digest(data) + b"\n", private=private)


def read_sealed(path: Path, *, set_aside_corrupt: bool = True) -> bytes | None:
    """Return what write_sealed wrote; None: the file does not exist, or is corrupt.

    Corrupt is what was changed, cut short, or written by something else. set_aside_corrupt: it is logged and renamed;
    else it stays as it is. Raises OSError, from reading or renaming.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    sealed = _SEALED.fullmatch(content)
    if sealed is not None and _digest(sealed[1]) == sealed[2]:
        return sealed[1]
    if set_aside_corrupt:
        log.warning("%s is corrupt; it is kept as %s", path, set_aside(path).name)
    return None


def set_aside(path: Path) -> Path:
    """Rename a corrupt file or folder to NAME.corrupt or NAME.corrupt.N; return the new path. Raises OSError."""
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
    """Raise NoRoomError where a folder's file system has less room than needed. what: the subject of the error."""
    if free_bytes(folder) < needed_bytes:
        raise no_room(what, folder, needed_bytes)


def no_room(what: str, folder: Path, needed_bytes: int, why: str = "") -> NoRoomError:
    """Return the error of a disk that cannot take so much: "{what} needs 3.0 GB in {folder}, where ...".

    why: the message of the system, which is shown where enough seems to be free: for a quota or a limit of file sizes.
    """
    free = free_bytes(folder)
    advice = f": make {readable_size(needed_bytes - free)} free there" if needed_bytes > free else f", but: {why}"
    line = f"{what} needs {readable_size(needed_bytes)} in {folder}, where {readable_size(free)} are free{advice}"
    return NoRoomError(line, str(folder), needed_bytes, free)


def existing_parent(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def tree_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder and those in it; what is being deleted may be missing."""
    size_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size_bytes += os.lstat(os.path.join(parent, name)).st_size
    return size_bytes


def free_bytes(path: Path) -> int:
    """Return the bytes free to users, quotas aside, on the file system of a path, which need not exist yet."""
    return shutil.disk_usage(existing_parent(path)).free


def readable_size(size_bytes: int, *, up: bool = False) -> str:
    """Return a size for people, in units of 1000: `812 bytes`, `3.4 MB`, `1.2 GB`. up: rounded up."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= scale:
            tenths = -(-10 * size_bytes // scale) if up else 10 * size_bytes / scale
            return f"{tenths / 10:.1f} {unit}"
    return f"{size_bytes} bytes"
