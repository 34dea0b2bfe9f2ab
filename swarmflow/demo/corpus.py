"""The demonstration's corpus: the source text of the machine's own Python standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from swarmflow.errors import DataError

CORPUS_BYTES_MAX = 4 << 20
# Generated tables, tests and installed packages are no useful text to learn.
SKIPPED = frozenset(
    {"encodings", "idlelib", "lib2to3", "pydoc_data", "site-packages", "dist-packages", "test", "tests"}
)


def write_corpus(path: Path, bytes_max: int = CORPUS_BYTES_MAX) -> int:
    """Write up to `bytes_max` bytes of standard library modules into one file, in the order of their paths.

    Returns their number. Raises DataError where this Python has no source files.
    """
    root = Path(sysconfig.get_path("stdlib"))
    written = 0
    with path.open("wb") as corpus:
        for source in sorted(root.rglob("*.py")):
            if written >= bytes_max or SKIPPED & set(source.relative_to(root).parts):
                continue
            written += corpus.write(source.read_bytes()[: bytes_max - written])
    if not written:
        raise DataError(f"this Python has no source files under {root}; install the full standard library")
    return written
