"""A trainer's files: which folder is its own, who may lead on this machine, and what the run was started with."""

from __future__ import annotations

import fcntl
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
from blake3 import blake3

from swarmflow.compute.checkpoint import Generation, newest_complete, newest_known
from swarmflow.core.leading.memories import NOTHING, Former
from swarmflow.core.types import Holding, Snapshot
from swarmflow.errors import CheckpointError
from swarmflow.files import write_whole
from swarmflow.manifest import Manifest
from swarmflow.runtime.folders import SHARED, state_folder

_TRAINERS_MAX = 256


class StateFolder:
    """One trainer's folder, locked while it lives.

    identity.key: its libp2p identity. port: where it listened last. run.json: the run's manifest. trainers: addresses
    of the run's other trainers, a line each. checkpoints/: the states of committed versions. known: the newest version
    that lay there. begun: exists once a step was committed. former: how far the run had come, with which peers.
    tokenizer/: the tokenizer's files, for exports.
    """

    def __init__(self, path: Path, lock: IO[bytes]) -> None:
        self.path = path
        self._lock = lock
        self.identity = path / "identity.key"
        self.checkpoints = path / "checkpoints"
        self.tokenizer = path / "tokenizer"
        self._manifest = path / "run.json"
        self._port = path / "port"
        self._trainers = path / "trainers"
        self._known = path / "known"
        self._former = path / "former"
        self._begun = path / "begun"

    @classmethod
    def open(cls, stack: ExitStack, asked_for: Path | None, output: Path) -> StateFolder:
        """The folder asked for, or the first free one under `output`. Raises CheckpointError when it is taken."""
        if asked_for is not None:
            lock = try_lock(stack, state_folder(asked_for) / "lock")
            if lock is None:
                raise CheckpointError(f"--state-dir {asked_for} is in use by another trainer; give another one")
            _point_to(asked_for.absolute(), output / "state")
            return cls(asked_for, lock)
        state_folder(output / "state", SHARED)
        for number in range(_TRAINERS_MAX):
            path = state_folder(output / "state" / f"trainer-{number}")
            lock = try_lock(stack, path / "lock")
            if lock is not None:
                return cls(path, lock)
        raise CheckpointError(f"{_TRAINERS_MAX} trainers run from {output} already")

    @property
    def port(self) -> int:
        """The port that it had last time, 0: none."""
        return _number(self._port)

    def keep_port(self, port: int) -> None:
        """Remember it, so that invites survive a restart."""
        _replace(self._port, str(port).encode())

    @property
    def trainers(self) -> tuple[str, ...]:
        """Multiaddrs of the run's other trainers, as known last time."""
        return tuple(self._trainers.read_text().split()) if self._trainers.is_file() else ()

    def keep_trainers(self, addresses: tuple[str, ...]) -> None:
        """Remember where the others are: whoever starts again looks for them before it leads a run of its own."""
        if addresses != self.trainers:
            _replace(self._trainers, "\n".join(addresses).encode())

    @property
    def known(self) -> int:
        """The newest version of the run that this trainer has had on disk, 0: none, whatever is left of it."""
        return _number(self._known)

    def keep_known(self, version: int) -> None:
        """Remember that a version exists: a run must not begin again although its checkpoints are lost here."""
        if version > self.known:
            _replace(self._known, str(version).encode())

    def keep_begun(self) -> None:
        """Remember that a step of the run was committed: from now on what the run is does not change."""
        if not self._begun.exists():
            _replace(self._begun, b"")

    def keep_former(self, former: Former) -> None:
        """Remember how far the run has come, and who holds that version in memory. Raises CheckpointError."""
        _replace(self._former, msgspec.json.encode(former))

    def manifest(self) -> Manifest | None:
        """What the run was started with, if this folder has seen it. Raises CheckpointError when it is unreadable."""
        return Manifest.decode(self._manifest.read_bytes()) if self._manifest.is_file() else None

    def keep_manifest(self, manifest: Manifest) -> None:
        """Remember the run."""
        _replace(self._manifest, manifest.encode())


def try_lock(stack: ExitStack, path: Path) -> IO[bytes] | None:
    """Lock a file until the stack is closed or the process ends; None: another process holds it."""
    try:
        file = path.open("ab")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    stack.callback(file.close)
    return file


def _point_to(folder: Path, state: Path) -> None:
    """Leave a link to a folder elsewhere, so that whoever leads next finds what is in it."""
    if folder.parent == state.absolute():
        return
    link = state_folder(state, SHARED) / f"trainer-{blake3(bytes(folder)).hexdigest()[:16]}"
    try:
        link.symlink_to(folder, target_is_directory=True)
    except FileExistsError:
        return
    except OSError as error:
        raise CheckpointError(f"{link} cannot be made: {error.strerror}") from None


@dataclass(frozen=True)
class OnDisk:
    """What a trainer may go on from. newest: the newest version that is whole and right, None: there is none.

    known: the newest version that was on a disk, as far as the folders tell, whatever is left of it. former: how far
    the run had come, and which peers took part then: they may hold that version in memory.
    """

    newest: Generation | None
    known: int
    former: Former = NOTHING

    @property
    def version(self) -> int:
        """Of the newest one, else 0."""
        return self.newest.version if self.newest is not None else 0

    @property
    def digests(self) -> tuple[str, ...]:
        """Of its files."""
        return self.newest.digests if self.newest is not None else ()

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """The same, as it is told to others."""
        if self.newest is None:
            return ()
        return (Holding(Snapshot(self.version, self.digests), tuple(range(self.newest.stages))),)


def newest_version(folder: StateFolder, output: Path, run: str) -> OnDisk:
    """The newest complete version of a run in this folder and in those of the trainers beside it.

    What is corrupt is told of and left out.
    """
    folders = _places(folder, output)
    found: list[Generation] = []
    known = max(_number(path / "known") for path in folders)
    roots = [path / "checkpoints" for path in folders]
    for root in dict.fromkeys(path.absolute() for path in roots):
        known = max(known, newest_known(root, run))
        try:
            generation = newest_complete(root, run)
        except CheckpointError:
            continue  # each was told of; others may have copies
        if generation is not None:
            found.append(generation)
    former = max((_former(path / "former") for path in folders), key=lambda former: former.version)
    return OnDisk(max(found, key=lambda generation: generation.version, default=None), known, former)


def earlier_manifest(folder: StateFolder, output: Path) -> Manifest | None:
    """The manifest of the run in this folder, or in that of a trainer beside it; of one that has begun first."""
    places = [place for place in _places(folder, output) if (place / "run.json").is_file()]
    place = next((place for place in places if _has_begun(place)), places[0] if places else None)
    return None if place is None else Manifest.decode((place / "run.json").read_bytes())


def has_begun(folder: StateFolder, output: Path) -> bool:
    """Whether a step of the run was committed, as far as this folder and those of the trainers beside it tell."""
    return any(_has_begun(place) for place in _places(folder, output))


def _places(folder: StateFolder, output: Path) -> list[Path]:
    return [folder.path, *sorted(output.glob("state/*"))]


def _has_begun(place: Path) -> bool:
    return (place / "begun").exists() or _number(place / "known") > 0


def _former(path: Path) -> Former:
    """What a file says; NOTHING: there is none, or a crash has cut it short."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Former)
    except (OSError, msgspec.DecodeError):
        return NOTHING


def _number(path: Path) -> int:
    """What a file says, 0: there is none, or it is no number."""
    text = path.read_text().strip() if path.is_file() else ""
    return int(text) if text.isascii() and text.isdigit() else 0


def _replace(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from None
