"""A trainer's files: its own folder, and the manifests and versions in the folders of one output."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

import msgspec
from blake3 import blake3

from swarmflow.compute.checkpoint import Checkpoint, checkpoints, newest_complete, newest_known, readable
from swarmflow.core.durability.memories import NOTHING, Former
from swarmflow.core.protocol.types import Holding, Snapshot
from swarmflow.errors import CheckpointError, ConfigError, IncompatibleError, SwarmflowError, TakenError
from swarmflow.files import read_sealed, write_sealed, write_whole
from swarmflow.manifest import Manifest
from swarmflow.runtime.operations.folders import first_manifest, kept_manifest, shared_folder, state_folder
from trainers.lock import FolderLock, holder

log = logging.getLogger("swarmflow")

_TRAINERS_MAX = 256


class StateFolder:
    """One trainer's folder, locked while it lives.

    identity.key: its libp2p identity. port: where it listened last. run.json: the run's manifest. trainers: addresses
    of the run's other trainers, a line each. checkpoints/: the states of committed versions. known: the newest version
    that lay there. begun: exists once a step was committed. former: how far the run had come, with which peers.
    tokenizer/: the tokenizer's files, for exports.

    The contents of its files are also in memory: where a disk refuses for a while, the trainer goes on and tries again.
    """

    def __init__(self, path: Path, lock: FolderLock, link: Path | None = None) -> None:
        """link: the name under which trainers of the same output find it, where it lies elsewhere."""
        self.path = path
        self._lock = lock
        self._link = link
        self.identity = path / "identity.key"
        self.checkpoints = path / "checkpoints"
        self.tokenizer = path / "tokenizer"
        self._manifest_file = path / "run.json"
        self._manifest_copy_file = path / "run.json.copy"
        self._port_file = path / "port"
        self._trainers_file = path / "trainers"
        self._newest_seen_file = path / "known"
        self._former_file = path / "former"
        self._begun_file = path / "begun"
        self._contents: dict[Path, bytes] = {}  # of the files, as last read or to be written
        self._dirty: set[Path] = set()  # files whose content is not on the disk yet
        self._key = b""  # the content of identity.key
        self._write_failed = False  # and was logged; until a write succeeds
        self._writing = RLock()  # several threads keep files here
        self._peers_leave = False

    @classmethod
    def open(cls, stack: ExitStack, asked_for: Path | None, output: Path) -> StateFolder:
        """Open the requested folder, or the first free one under `output`. Raises CheckpointError when it is taken."""
        if asked_for is not None:
            path = state_folder(asked_for) / "lock"
            lock = FolderLock.acquire(path)
            if lock is None:
                whose = f"another trainer, {holder(path)}"
                raise CheckpointError(f"--state-dir {asked_for} is in use by {whose}; give another one")
            folder = cls(asked_for, lock, _point_to(asked_for.absolute(), output / "state"))
            stack.callback(folder.release)
            return folder
        shared_folder(output / "state")
        for number in range(_TRAINERS_MAX):
            path = state_folder(output / "state" / f"trainer-{number}")
            lock = FolderLock.acquire(path / "lock")
            if lock is not None:
                folder = cls(path, lock)
                stack.callback(folder.release)
                return folder
        raise CheckpointError(f"{_TRAINERS_MAX} trainers run from {output} already")

    def release(self) -> None:
        """Release the folder."""
        self._lock.release()

    def beat(self) -> bool:
        """Check the folder, and return whether it had to be made anew. To be called every second.

        Raises OSError, and TakenError when another trainer, on another machine, has taken it.
        """
        self._lock.check()
        if not self._key and self.identity.is_file():
            self._key = self.identity.read_bytes()
        made = not self._lock.is_there and self._make_again()
        self._flush()
        return made

    @property
    def port(self) -> int:
        """The port of the last start; 0: none."""
        return _as_number(self._read(self._port_file))

    def keep_port(self, port: int) -> None:
        """Keep the port, so that invites stay valid after a restart."""
        self._keep(self._port_file, str(port).encode())

    @property
    def trainers(self) -> tuple[str, ...]:
        """Multiaddrs of the run's other trainers, as last known."""
        return _lasting((self._read(self._trainers_file) or b"").decode("utf-8", "replace").split())

    def keep_trainers(self, addresses: tuple[str, ...]) -> None:
        """Keep the addresses of the others: a trainer that starts again looks for them before it leads a run.

        Malformed addresses are left out.
        """
        good = _lasting(addresses)
        if good != self.trainers:
            self._keep(self._trainers_file, "\n".join(good).encode())

    @property
    def newest_seen(self) -> int:
        """The newest version of the run that was ever on this trainer's disk; 0: none."""
        return _as_number(self._read(self._newest_seen_file))

    def keep_newest_seen(self, version: int) -> None:
        """Record that a version exists: a run must not begin again although its checkpoints are lost here."""
        if version > self.newest_seen:
            self._keep(self._newest_seen_file, str(version).encode())

    def keep_begun(self) -> None:
        """Record that a step of the run was committed: from now on its manifest does not change."""
        if self._begun_file not in self._contents:
            self._keep(self._begun_file, b"")

    def keep_former(self, former: Former) -> None:
        """Record how far the run has come, and which peers hold that version in memory; unless they leave."""
        with self._writing:
            if not self._peers_leave:
                self._keep(self._former_file, msgspec.json.encode(former))

    def forget_peers(self) -> None:
        """Record that the run is over and its peers leave: none of them holds a version any more."""
        with self._writing:
            self.keep_former(NOTHING)
            self._peers_leave = True

    @property
    def former(self) -> Former:
        """How far the run had come, and with which peers."""
        return _as_former(self._read(self._former_file))

    def manifest(self) -> Manifest | None:
        """Return the manifest that the run was started with, if this folder has it.

        A corrupt file is replaced by its copy. Raises CheckpointError where that is corrupt too.
        """
        try:
            found = first_manifest((self._manifest_file, self._manifest_copy_file), self._read)
        except IncompatibleError as error:
            raise CheckpointError(str(error)) from None
        if found is not None:
            return found
        if any(self.path.glob("run.json*.corrupt*")):
            raise CheckpointError(
                f"{self._manifest_file} and its copy are corrupt: "
                "bring back one of them, or that of another trainer of it"
            )
        return None

    def keep_manifest(self, manifest: Manifest) -> None:
        """Keep the manifest of the run."""
        for path in (self._manifest_file, self._manifest_copy_file):
            self._keep(path, manifest.encode())

    # --- the disk -----------------------------------------------------------------------------------------------------

    def _read(self, path: Path) -> bytes | None:
        if path not in self._contents:
            try:
                data = read_sealed(path)
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
            if data is None:
                return None
            self._contents[path] = data
        return self._contents[path]

    def _keep(self, path: Path, data: bytes) -> None:
        with self._writing:
            self._contents[path] = data
            self._dirty.add(path)
            self._flush()

    def _flush(self) -> None:
        with self._writing:
            for path in sorted(self._dirty):
                try:
                    write_sealed(path, self._contents[path])
                except OSError as error:
                    if not self._write_failed:
                        log.warning("%s cannot be written: %s; it is tried again", path, error.strerror)
                    self._write_failed = True
                    return
                self._dirty.discard(path)
            self._write_failed = False

    def _make_again(self) -> bool:
        """Make the folder, or the lock in it, again after it was deleted, and return whether that succeeded."""
        try:
            lock = FolderLock.acquire(state_folder(self.path, held=True) / "lock")
            if lock is None:
                raise TakenError(f"{self.path} was deleted, and is another trainer's now: start this one again")
            if self._key and not self.identity.exists():
                write_whole(self.identity, self._key, private=True)
            if self._link is not None:
                _point_to(self.path.absolute(), self._link.parent, held=True)
        except TakenError:
            raise
        except (SwarmflowError, OSError) as error:
            if not self._write_failed:
                log.warning("the state folder %s is gone and cannot be made again yet: %s", self.path, error)
            self._write_failed = True
            return False
        self._lock.release()
        self._lock = lock
        self._dirty = set(self._contents)
        log.warning("the state folder %s was deleted: what belongs there is written again", self.path)
        return True


def _point_to(folder: Path, state: Path, *, held: bool = False) -> Path | None:
    """Make a link to a folder elsewhere, so that the next leader finds its content, and return the link."""
    if folder.parent == state.absolute():
        return None
    link = shared_folder(state, held=held) / f"trainer-{blake3(bytes(folder)).hexdigest()[:16]}"
    try:
        link.symlink_to(folder, target_is_directory=True)
    except FileExistsError:
        return link
    except OSError as error:
        raise CheckpointError(f"{link} cannot be made: {error.strerror}") from None
    return link


@dataclass(frozen=True)
class OnDisk:
    """The versions on disk from which a trainer may go on."""

    newest: Checkpoint | None  # the newest version that is whole and correct
    newest_seen: int  # the newest version that was ever on a disk, by the files of the folders
    former: Former = NOTHING  # how far the run had come, with which peers: they may hold that version in memory
    parts: tuple[Holding, ...] = ()  # stages of later versions in the own folder, none of which is whole there

    @property
    def version(self) -> int:
        """The newest whole version, else 0."""
        return self.newest.version if self.newest is not None else 0

    @property
    def digests(self) -> tuple[str, ...]:
        """The digests of its files."""
        return self.newest.digests if self.newest is not None else ()

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """The stages on disk, as they are announced to other processes."""
        if self.newest is None:
            return self.parts
        return (Holding(Snapshot(self.version, self.digests), tuple(range(self.newest.stages))), *self.parts)


def newest_version(folder: StateFolder, output: Path, run: str) -> OnDisk:
    """Return the newest complete version of a run in this folder and in those of the trainers beside it.

    Corrupt versions are logged and left out, and set aside in this trainer's own folder.
    """
    found: list[Checkpoint] = []
    others = _other_folders(folder, output)
    seen = max(folder.newest_seen, *map(_newest_seen, others), 0)
    roots = [folder.checkpoints, *(path / "checkpoints" for path in others)]
    for root in dict.fromkeys(path.absolute() for path in roots):
        try:
            checkpoint = newest_complete(root, run, mend=root == folder.checkpoints.absolute())
        except CheckpointError:
            checkpoint = None  # each was logged; others may have copies
        with suppress(CheckpointError):  # the folder cannot be listed
            seen = max(seen, newest_known(root, run))
        if checkpoint is not None:
            found.append(checkpoint)
    former = max((folder.former, *map(_former, others)), key=lambda each: each.version)
    newest = max(found, key=lambda checkpoint: checkpoint.version, default=None)
    left = parts(folder.checkpoints, run, newest.version if newest is not None else 0)
    return OnDisk(newest, seen, former, left)


def parts(root: Path, run: str, after: int) -> tuple[Holding, ...]:
    """Return the stages in a folder of versions after this one, none of which is whole there."""
    later = [found for found in readable(root, run) if found.version > after and found.digests and found.stages_held]
    return tuple(Holding(Snapshot(found.version, found.digests), found.stages_held) for found in later)


def earlier_manifest(folder: StateFolder, output: Path) -> Manifest | None:
    """Return the manifest of the run in this folder or one beside it; a run that has begun comes first.

    Raises CheckpointError where the own one is corrupt and there is no other.
    """
    found: list[tuple[bool, Manifest]] = []
    failure: CheckpointError | None = None
    try:
        own = folder.manifest()
        found += [(_has_begun(folder.path), own)] if own is not None else []
    except CheckpointError as error:
        failure = error
    for place in _other_folders(folder, output):
        manifest = _manifest_in(place)
        found += [(_has_begun(place), manifest)] if manifest is not None else []
    if not found and failure is not None:
        raise failure
    return max(found, key=lambda entry: entry[0], default=(False, None))[1]


def has_begun(folder: StateFolder, output: Path) -> bool:
    """Whether a step of the run was committed, by the files of this folder and those of the trainers beside it."""
    return any(_has_begun(place) for place in (folder.path, *_other_folders(folder, output)))


def check_joins(folder: StateFolder, output: Path, run_id: str, run: str | None = None) -> None:
    """Raise ConfigError where the own folder, or one beside it, holds another run than the one to join.

    A run that has not begun does not count. run: the fingerprint of the one to join, where it is known already.
    """
    own = folder.manifest()
    if own is None or own.run_id != run_id:
        known = own is not None or run is not None
        foreign = known and any(found.run != run for found in checkpoints(folder.checkpoints))
        if foreign or (own is not None and _has_begun(folder.path)):
            raise _another_run(folder.path, own, run_id)
    for place in _other_folders(folder, output):
        held = _manifest_in(place)
        if held is not None and held.run_id != run_id and _has_begun(place):
            raise _another_run(place, held, run_id)


def _another_run(place: Path, held: Manifest | None, run_id: str) -> ConfigError:
    whose = f"the run {held.name} ({held.run_id})" if held is not None else "versions of another run"
    return ConfigError(
        f"{place} holds {whose}, which the invite's ({run_id}) would take the place of: join with another [run] "
        "output, and another --state-dir where one is given"
    )


def _other_folders(folder: StateFolder, output: Path) -> list[Path]:
    """Return the folders of the other trainers of an output."""
    own = folder.path.resolve()
    return [path for path in sorted(output.glob("state/*")) if path.is_dir() and path.resolve() != own]


def _has_begun(place: Path) -> bool:
    return (place / "begun").exists() or _newest_seen(place) > 0


def _former(place: Path) -> Former:
    return _as_former(_of_another(place / "former"))


def _as_former(data: bytes | None) -> Former:
    """Parse the file `former`; NOTHING where it is missing or malformed."""
    try:
        return NOTHING if data is None else msgspec.json.decode(data, type=Former)
    except msgspec.DecodeError:
        return NOTHING


def _newest_seen(place: Path) -> int:
    return _as_number(_of_another(place / "known"))


def _manifest_in(place: Path) -> Manifest | None:
    try:
        return kept_manifest(place)
    except IncompatibleError as error:
        raise CheckpointError(str(error)) from None


def _of_another(path: Path) -> bytes | None:
    """Read a file that another trainer repairs: an unreadable one counts as missing."""
    try:
        return read_sealed(path, set_aside_corrupt=False)
    except OSError:
        return None


def _as_number(data: bytes | None) -> int:
    """Parse a number; 0 where it is missing or malformed."""
    text = (data or b"").decode("ascii", "replace").strip()
    return int(text) if text.isascii() and text.isdigit() else 0


def _lasting(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses that are worth keeping."""
    from swarmflow.runtime.transport.addresses import lasting  # it loads torch: mistakes are reported before

    return lasting(addresses)
