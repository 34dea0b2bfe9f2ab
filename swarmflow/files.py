"""Files that others find whole or not at all, whenever the machine stops."""

from __future__ import annotations

import os
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
