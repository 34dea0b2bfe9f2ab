"""A trainer's state folder: what it has to know when it is started again."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from threading import RLock

import msgspec
from blake3 import blake3

from swarmflow.core.durability.memories import NOTHING, Former
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import CheckpointError, IncompatibleError, SwarmflowError, TakenError
from swarmflow.files import read_sealed, write_sealed, write_whole
from swarmflow.manifest import Manifest
from swarmflow.runtime.operations.folders import checkpoints_folder, first_manifest, shared_folder, state_folder
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
        self._manifest: Manifest | None = None  # as last read or kept

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
        return as_number(self._read(self._port_file))

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
        return as_number(self._read(self._newest_seen_file))

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
            self.keep_former(replace(NOTHING, generation=self.former.generation))
            self._peers_leave = True

    @property
    def former(self) -> Former:
        """How far the run had come, and with which peers."""
        return as_former(self._read(self._former_file))

    def manifest(self) -> Manifest | None:
        """Return the manifest that the run was started with, if this folder has it.

        A corrupt file is replaced by its copy. Raises CheckpointError where that is corrupt too.
        """
        try:
            found = first_manifest((self._manifest_file, self._manifest_copy_file), self._read)
        except IncompatibleError as error:
            raise CheckpointError(str(error)) from None
        if found is not None:
            self._manifest = found
            return found
        if any(self.path.glob("run.json*.corrupt*")):
            raise CheckpointError(
                f"{self._manifest_file} and its copy are corrupt: "
                "bring back one of them, or that of another trainer of it"
            )
        return None

    def keep_manifest(self, manifest: Manifest) -> None:
        """Keep the manifest of the run."""
        self._manifest = manifest
        for path in (self._manifest_file, self._manifest_copy_file):
            self._keep(path, manifest.encode())

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints of the run as it is cut now."""
        if self._manifest is None:
            with suppress(CheckpointError):  # whoever needs the manifest is told
                self.manifest()
        return checkpoints_folder(self.path, self._manifest)

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


def as_former(data: bytes | None) -> Former:
    """Parse the file `former`; NOTHING where it is missing or malformed."""
    try:
        return NOTHING if data is None else msgspec.json.decode(data, type=Former)
    except UNDECODABLE:
        return NOTHING


def as_number(data: bytes | None) -> int:
    """Parse a number; 0 where it is missing or malformed."""
    text = (data or b"").decode("ascii", "replace").strip()
    return int(text) if text.isascii() and text.isdigit() else 0


def _lasting(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses that are worth keeping."""
    from swarmflow.runtime.transport.addresses import lasting  # it loads torch: mistakes are reported before

    return lasting(addresses)
