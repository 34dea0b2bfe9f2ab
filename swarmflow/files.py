"""Files that others find whole or not at all, whenever the machine stops."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file NAME.*.tmp that takes the place of `path`, whole and on the disk, when the block ends well.

    Raises OSError, as the block's writes do; then nothing is left of it, and `path` is as it was.
    """
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):  # the disk that refused to write may refuse this too
            draft.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Give a file this content. Raises OSError."""
    with replacing(path) as file:
        file.write(data)


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
