"""The text of a new run: what the user named, or what lies in a folder, as a path that matches no result of the run."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from swarmflow.errors import DataError
from trainers.sources import find_files

TEXT_SUFFIXES = (".txt", ".text", ".md", ".jsonl", ".ndjson", ".parquet")
_LOG_SUFFIXES = (".jsonl", ".ndjson")  # as those of the file that `trainer --json` writes


def find_text(folder: Path, data: str | None, home: Path) -> str:
    """Return the absolute path or glob of the text.

    folder: where the text is if `data` is None. home: the folder of RUN.toml. The run's results are written there, so a
    folder around it is not taken whole, but its files with one suffix: of those of text, the one with the most bytes.

    Raises DataError where there is no text, or no path that leaves out the results.
    """
    path = Path(folder if data is None else data).expanduser().absolute()
    # Names with ".." or links to a parent are not recognised without resolving them.
    if path.is_dir() and home.resolve().is_relative_to(path.resolve()):
        return _texts_beside(path)
    if data is None and not path.is_dir():
        raise DataError(f"{folder} is not there; give the folder with the text, or name the text with --data")
    find_files(str(path))
    return str(path)


def _texts_beside(folder: Path) -> str:
    """Return the text in a folder that will contain the results of the run too."""
    sizes: dict[str, int] = defaultdict(int)
    groups: dict[str, list[Path]] = defaultdict(list)
    for name in _files(folder):
        file = Path(name)
        if file.suffix.lower() in TEXT_SUFFIXES:
            sizes[file.suffix] += os.path.getsize(file)
            groups[file.suffix].append(file)
    if not groups:
        raise DataError(
            f"no text in {folder} (files that end in {', '.join(TEXT_SUFFIXES)}): name a file, a folder or a glob with "
            "--data"
        )
    suffix = max(sizes, key=lambda each: (sizes[each], each))
    files = groups[suffix]
    tops = {file.relative_to(folder).parts[0] for file in files if file.parent != folder}
    if len(files) == 1:
        return str(files[0])
    if not tops and suffix.lower() not in _LOG_SUFFIXES:
        return str(folder / f"*{suffix}")
    if len(tops) == 1 and all(file.parent != folder for file in files):
        return str(folder / tops.pop() / "**" / f"*{suffix}")
    where = "in several folders" if tops else f"in several {suffix} files"
    raise DataError(
        f"{folder} has text {where}, and the run's results and logs there would be read as text too: "
        "write RUN.toml outside of it with --out, or name the text with --data"
    )


def _files(folder: Path) -> list[str]:
    try:
        return find_files(str(folder))
    except DataError:
        return []  # an empty folder: the error about text says more
