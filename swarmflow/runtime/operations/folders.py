"""The folders in which processes keep their own files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from swarmflow.errors import IncompatibleError, NetworkError
from swarmflow.files import read_sealed
from swarmflow.manifest import Manifest
from swarmflow.ownership import Marker, claim_folder, names

# What trainers and peers write into their state folders, and trainers of one output into its folder `state`.
STATE = names(
    r"identity\.key(\.lock|\.copy|\.\d+\.new)?",
    r"lock",
    r"port",
    r"run\.json(\.copy)?",
    r"run",
    r"trainers",
    r"known",
    r"begun",
    r"former",
    r"checkpoints(-\d+)?",
    r"tokenizer",
    r"copies",
    r"left",
    r"frozen",
    r"policy",
    r"certificate",
    r".*\.corrupt(\.\d+)?",
    r".+\.[0-9a-f]{8}\.tmp",
)
SHARED = names(
    r"leader\.lock", r"invite", r"owner\.key", r"policy", r"cache", r"trainer-[0-9a-f]+", r".+\.[0-9a-f]{8}\.tmp"
)


_KEY_START = b"\x08\x01\x12"  # of an Ed25519 key as libp2p stores it


def state_folder(path: Path, *, held: bool = False) -> Path:
    """A folder for a process's own files, made when it is not there.

    held: this process had it before, so that the files there are its own even without the marker.
    Raises NetworkError when it cannot be made, and ForeignFileError when something else is in it.
    """
    return _claimed(path, STATE, (lambda folder: True) if held else _is_state)


def shared_folder(path: Path, *, held: bool = False) -> Path:
    """The folder `state` of an output, as state_folder."""
    return _claimed(path, SHARED, (lambda folder: True) if held else _is_shared)


def kept_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a run in a state folder, or its copy; None: neither is there and whole.

    Nothing is repaired; an unreadable file counts as missing. Raises IncompatibleError where it is another
    version's.
    """
    return first_manifest(folder / name for name in ("run.json", "run.json.copy"))


def first_manifest(paths: Iterable[Path], read: Callable[[Path], bytes | None] | None = None) -> Manifest | None:
    """Return the first of these files that is a whole manifest; None: none is.

    read: returns the content of a file. Raises what `read` raises, and IncompatibleError where all
    whole ones are another version's.
    """
    unfit: IncompatibleError | None = None
    for path in paths:
        data = (read or _of_another)(path)
        try:
            if data is not None:
                return Manifest.decode(data)
        except IncompatibleError as error:
            unfit = unfit or IncompatibleError(f"{path}: {error}")
    if unfit is not None:
        raise unfit
    return None


def _of_another(path: Path) -> bytes | None:
    """Read a file that another process repairs."""
    try:
        return read_sealed(path, set_aside_corrupt=False)
    except OSError:
        return None


def _claimed(path: Path, own_names: re.Pattern[str], is_own: Callable[[Path], bool]) -> Path:
    try:
        claim_folder(path, "state", own_names, is_own)
    except OSError as error:
        raise NetworkError(f"the state folder {path} cannot be made: {error.strerror}") from None
    return path


def _is_state(folder: Path) -> bool:
    """Whether only swarmflow can have written the content of a state folder, even one without its marker."""
    for key in (folder / "identity.key", folder / "identity.key.copy"):
        if key.is_file():
            with key.open("rb") as file:
                if file.read(len(_KEY_START)) == _KEY_START:
                    return True
    return any(_of_another(folder / name) is not None for name in ("run.json", "run.json.copy"))


def _is_shared(folder: Path) -> bool:
    """Whether it contains the folder of a trainer."""
    places = [place for place in folder.glob("trainer-*") if place.is_dir()]
    return any(Marker.read(place) == Marker("state") or _is_state(place) for place in places)


def checkpoints_folder(folder: Path, manifest: Manifest | None) -> Path:
    """Return where a trainer keeps the checkpoints of a run, in its state folder. manifest: None: of a new run.

    A run that is cut anew has a folder for each cut: the files of another one have the same names.
    """
    return folder / (f"checkpoints-{manifest.cuts}" if manifest is not None and manifest.cuts else "checkpoints")
