"""What swarmflow has written, told from what it has not: only its own files are ever removed or overwritten.

A folder is its own when it holds the marker that swarmflow leaves there; a file that a person names is its own when its
content is what swarmflow writes into such a file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from swarmflow.errors import ForeignFileError
from swarmflow.files import write_whole

MARKER = ".swarmflow.json"
FORMAT = 1
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # it names folders and files: nothing that a path could mean otherwise
_NO_ONES = frozenset({"lost+found"})  # a file system's own, in its top folder
_MARKER_BYTES_MAX = 1 << 24
_START_BYTES = 1 << 16
_OBJECT_BYTES_MAX = 1 << 28


def names(*patterns: str) -> re.Pattern[str]:
    """Of files with these names, and of what `files.replacing` has not finished of them."""
    return re.compile(rf"({'|'.join(patterns)})(\.[0-9a-f]{{8}}\.tmp)?")


@dataclass(frozen=True)
class Marker:
    """What a folder of swarmflow's says of itself.

    kind: `state`, `export` or `draft`. Where the folder is made once and replaced as a whole: run: id of the run that
    it belongs to. content: names what it was made from. files: name -> size and modification time (ns) of each file, as
    written.
    """

    kind: str
    run: str = ""
    content: str = ""
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Raises OSError."""
        fields: dict[str, object] = {"swarmflow": FORMAT, "kind": self.kind}
        if self.files or self.run:
            files = {name: list(facts) for name, facts in sorted(self.files.items())}
            fields |= {"run": self.run, "content": self.content, "files": files}
        write_whole(folder / MARKER, json.dumps(fields).encode())

    @classmethod
    def read(cls, folder: Path) -> Marker | None:
        """None where there is no marker that can be read."""
        try:
            with (folder / MARKER).open("rb") as file:
                fields = json.loads(file.read(_MARKER_BYTES_MAX))
            files = {str(name): (int(size), int(time)) for name, (size, time) in fields.get("files", {}).items()}
            return cls(str(fields["kind"]), str(fields.get("run", "")), str(fields.get("content", "")), files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


# --- folders in which swarmflow keeps files of its own ----------------------------------------------------------------


def claim_folder(path: Path, kind: str, own_names: re.Pattern[str], is_own: Callable[[Path], bool]) -> None:
    """Make a folder, or take one that is empty or that swarmflow made, and leave the marker in it.

    own_names: of what swarmflow writes there, which others may call theirs too. So without a marker, which an older
    version did not leave and somebody may have deleted, a folder of nothing else is taken only where is_own tells by
    its content that swarmflow wrote it. Folders with nothing in them, as file systems of their own are mounted on,
    count for nothing. Raises ForeignFileError; OSError.
    """
    path.mkdir(parents=True, exist_ok=True)
    found = Marker.read(path)
    if found is not None and found.kind == kind:
        return
    own = names(re.escape(MARKER), own_names.pattern)
    foreign = _first(path, lambda name: own.fullmatch(name) is None)
    if found is not None or foreign is not None:
        what = f"is an {found.kind}" if found is not None else f"holds {foreign}, which is not swarmflow's"
        raise ForeignFileError(f"the folder {path} {what}: give another one, or one that is empty")
    drafts = names(re.escape(MARKER))
    unproven = _first(path, lambda name: drafts.fullmatch(name) is None and not _is_empty_folder(path / name))
    if unproven is not None and not is_own(path):
        raise ForeignFileError(
            f"the folder {path} holds {unproven}, and nothing in it says that it is swarmflow's: give another one, or "
            "one that is empty"
        )
    Marker(kind).write(path)


def remove_own(folder: Path, own_names: re.Pattern[str]) -> None:
    """Remove the files of these names from a folder, and the folder when nothing is left in it. Raises OSError."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if own_names.fullmatch(path.name) and not path.is_dir():
            path.unlink(missing_ok=True)
    _remove_if_empty(folder)


# --- folders that are made once and replaced as a whole ---------------------------------------------------------------


def seal(folder: Path, kind: str, run: str, content: str) -> None:
    """Leave the marker that names every file in the folder as it is now. Raises OSError."""
    files = {name: _facts(folder / name) for name in _contents(folder)}
    Marker(kind, run, content, files).write(folder)


def is_intact(folder: Path, kind: str, run: str, content: str) -> bool:
    """Whether a folder is whole and made from this content."""
    marker = Marker.read(folder)
    if marker is None or (marker.kind, marker.run, marker.content) != (kind, run, content):
        return False
    found = _contents(folder)
    return found == sorted(marker.files) and all(_unchanged(folder, name, marker) for name in found)


def check_replaceable(folder: Path, kind: str, run: str) -> None:
    """Raises ForeignFileError unless a folder is empty, not there, or all of it was written for this run."""
    folder = Path(os.path.realpath(folder))  # where it is a link, what it leads to is replaced
    try:
        _check_replaceable(folder, kind, run)
    except OSError as error:
        raise ForeignFileError(f"the folder {folder} cannot be read: {error.strerror}: choose another one") from None


def _check_replaceable(folder: Path, kind: str, run: str) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ForeignFileError(f"{folder} is there and is no folder: move it away, or choose another name")
    marker = Marker.read(folder)
    if marker is None and not any(folder.iterdir()):
        return
    if marker is None or marker.kind != kind:
        raise ForeignFileError(
            f"the folder {folder} holds something that swarmflow did not write: move it away, or choose another one"
        )
    if marker.run != run:
        raise ForeignFileError(f"the folder {folder} belongs to another run: move it away, or choose another one")
    foreign = next((name for name in _contents(folder) if not _unchanged(folder, name, marker)), None)
    if foreign is not None:
        raise ForeignFileError(
            f"{folder / foreign} was added or changed after swarmflow wrote the folder: move it away, or choose another"
        )


def remove_replaceable(folder: Path) -> bool:
    """Remove what the folder's marker names and has not changed since; whether the whole folder is gone."""
    marker = Marker.read(folder)
    if marker is None:
        return False
    for name in _contents(folder):
        if _unchanged(folder, name, marker):
            (folder / name).unlink(missing_ok=True)
    if not _contents(folder):
        (folder / MARKER).unlink(missing_ok=True)
    for parent, _, _ in os.walk(folder, topdown=False):
        _remove_if_empty(Path(parent))
    return not folder.exists()


# --- files that a person names ----------------------------------------------------------------------------------------


def check_file(path: Path, option: str, is_own: Callable[[IO[bytes]], bool]) -> None:
    """Raises ForeignFileError when a file is there whose content swarmflow has not written. is_own: of the content.

    What is no file, a pipe or a terminal, cannot be overwritten.
    """
    try:
        if not path.is_file() or path.stat().st_size == 0:
            return
        with path.open("rb") as file:
            own = is_own(file)
    except OSError as error:
        raise ForeignFileError(f"{option} {path} cannot be read: {error.strerror}") from None
    if not own:
        raise ForeignFileError(f"{option} {path} is there and holds something else: move it away, or give another name")


def starts_with(pattern: re.Pattern[bytes]) -> Callable[[IO[bytes]], bool]:
    """Of a file whose first bytes match."""
    return lambda file: pattern.match(file.read(_START_BYTES)) is not None


def is_object_with(*keys: str) -> Callable[[IO[bytes]], bool]:
    """Of a JSON object that has these keys."""

    def check(file: IO[bytes]) -> bool:
        try:
            found = json.loads(file.read(_OBJECT_BYTES_MAX))
        except ValueError:
            return False
        return isinstance(found, dict) and all(key in found for key in keys)

    return check


def _first(folder: Path, such: Callable[[str], bool]) -> str | None:
    """The first such name in a folder."""
    return next((name for name in sorted(os.listdir(folder)) if name not in _NO_ONES and such(name)), None)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and _first(path, lambda name: True) is None


def _contents(folder: Path) -> list[str]:
    """The files in a folder and in those below it, links among them and the marker not, as relative names."""
    found: list[str] = []
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        found += [os.path.relpath(os.path.join(parent, name), folder) for name in (*files, *links)]
    return sorted(name for name in found if name != MARKER)


def _facts(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_size, status.st_mtime_ns


def _unchanged(folder: Path, name: str, marker: Marker) -> bool:
    try:
        return name in marker.files and _facts(folder / name) == marker.files[name]
    except FileNotFoundError:
        return False


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:  # something that is not swarmflow's is in it, or another process was faster
        return
