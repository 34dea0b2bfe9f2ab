"""Committed state of stages on disk: one folder a version, one safetensors file a stage, digests in a manifest.

ROOT/version-00000040/stage-0.safetensors    flat tensors "own.params", "own.exp_avg", ..., "tied.params", ...
ROOT/version-00000040/manifest.json          version, run, number of stages, blake3 digest and size a stage
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from swarmflow.compute.tensorfile import TensorFileWriter, file_digest, read_header, sync_folder, unreadable
from swarmflow.errors import CheckpointError, CorruptError, WrongCopyError
from swarmflow.files import NO_ROOM_ERRNOS, no_room, set_aside, write_whole
from swarmflow.ownership import names, remove_own

log = logging.getLogger("swarmflow")

FORMAT = 1  # of the manifest; another one is refused
GENERATIONS_KEPT = 2  # complete versions: the older one serves where the newer one turns out to be corrupt
MANIFEST_BYTES_MAX = 1 << 20  # a longer manifest is corrupt, and is not read into memory
_MANIFEST = "manifest.json"
_WHOLE = "whole"  # the key in `extra` of whether the version was whole once (Holding.whole)
_DIGESTS = "digests"  # the key in `extra` of the list of every stage's digest: a copy may lack some of the files
_NAME = re.compile(r"version-(\d{8,})")
_DRAFT_NAMES = names(r"\.stage-\d+\.safetensors\.[0-9a-f]{8}\.part")
_STAGE_NAMES = names(r"stage-\d+\.safetensors", _DRAFT_NAMES.pattern)
_MANIFEST_NAMES = names(r"manifest\.json")


def version_folder(root: Path, version: int) -> Path:
    """Return the folder of a version's state under `root`."""
    return root / f"version-{version:08d}"


def tensor_name(group: str, part: str) -> str:
    """Return the name, in a stage's file, of a reduction group's `params` or of one of its optimizer tensors."""
    return f"{group}.{part}"


class StageFile:
    """A stage's file, open for reading by ranges. elements: tensor name -> number of elements.

    The constructor reads the whole file once. It raises CorruptError when digest, size or header is wrong, and
    CheckpointError when the file cannot be read now.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self.digest = digest
        shapes, self._data_at = read_header(path)
        if file_digest(path) != digest:
            raise CorruptError(f"{path} is corrupt: its digest is not the one in {_MANIFEST}")
        if any(len(shape) != 1 for shape in shapes.values()):
            raise CorruptError(f"{path} does not hold flat tensors")
        self.elements = {name: shape[0] for name, shape in shapes.items()}
        self._reading = threading.Lock()  # `close` frees the descriptor: a read at that moment could be of another file
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise unreadable(path, error) from error

    def __enter__(self) -> StageFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._reading:
            self._file.close()

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return elements start to stop of a tensor, as little-endian fp32 bytes. Safe to call from several threads.

        Raises CheckpointError for elements that the file lacks or that cannot be read, and when it was closed.
        """
        if name not in self.elements or not 0 <= start <= stop <= self.elements[name]:
            raise CheckpointError(f"{self.path} has no elements {start} to {stop} of {name}")
        at = self._data_at
        for other, count in self.elements.items():
            if other == name:
                break
            at += 4 * count
        with self._reading:
            if self._file.closed:
                raise CheckpointError(f"{self.path} was closed: a newer version is here")
            try:
                data = os.pread(self._file.fileno(), 4 * (stop - start), at + 4 * start)
            except OSError as error:
                raise unreadable(self.path, error) from error
        if len(data) != 4 * (stop - start):
            raise CheckpointError(f"{self.path} was cut short while it was read")
        return data


class Checkpoint:
    """The folder of one committed version at one process; complete when it has the file of every stage."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.version = int(manifest["version"])
        self.run = str(manifest["run"])
        self.stages = int(manifest["stages"])
        self.extra: dict[str, Any] = dict(manifest["extra"])
        self._files: dict[int, tuple[str, int]] = {
            int(stage): (str(file["digest"]), int(file["bytes"])) for stage, file in manifest["files"].items()
        }
        self._adding = threading.Lock()  # several threads add stages, and the manifest must name each stage

    @classmethod
    def begin(
        cls, root: Path, version: int, run: str, stages: int, extra: Mapping[str, Any] | None = None
    ) -> Checkpoint:
        """Return the checkpoint of a version; a missing one is created.

        run: fingerprint of the run. extra: small JSON values that the manifest stores. Raises CheckpointError when the
        folder has another run's state, or cannot be written.
        """
        path = version_folder(root, version)
        found = cls._readable(path)
        if found is not None:
            if (found.run, found.stages) == (run, stages):
                return found
            raise CheckpointError(f"{path} belongs to another run; give another state folder")
        fields = {"version": version, "run": run, "stages": stages, "extra": dict(extra or {}), "files": {}}
        made = cls(path, fields)
        made._save()
        return made

    @classmethod
    def begin_copy(cls, root: Path, version: int, run: str, stages: int, digests: Sequence[str]) -> Checkpoint:
        """Return a checkpoint to write the files of a version into.

        digests: of every stage's file, where the files are copies; empty where this process computed them. An earlier
        copy with the same digests is continued, and so are files that this process computed and that have them. Any
        other content of the folder is incomplete or from another lineage: it is deleted, because its files do not fit
        the new ones. Raises CheckpointError.
        """
        path = version_folder(root, version)
        found = cls._readable(path)
        if found is not None:
            found.remove_drafts()
            if found.run == run and not (digests and found._becomes(digests)):
                found.remove()
        return cls.begin(root, version, run, stages, {_DIGESTS: list(digests)} if digests else None)

    def _becomes(self, digests: Sequence[str]) -> bool:
        """Return whether the files here belong to a version with these digests, which they are named by from now on."""
        if self.digests:
            return self.digests == tuple(digests)
        own = [stage for stage in range(self.stages) if self.has(stage)]
        if not own or any(self._files[stage][0] != digests[stage] for stage in own):
            return False
        self.extra[_DIGESTS] = list(digests)
        self._save()
        return True

    @classmethod
    def _readable(cls, path: Path) -> Checkpoint | None:
        """Return the checkpoint in a folder. None: the folder has no manifest, or a corrupt one and is set aside.

        Raises CheckpointError where the manifest cannot be read now.
        """
        try:
            return cls.open(path) if (path / _MANIFEST).is_file() else None
        except OSError as error:
            raise unreadable(path / _MANIFEST, error) from error
        except CorruptError as error:
            try:
                log.warning("%s; it is kept in %s", error, set_aside(path).name)
            except OSError as refused:
                raise CheckpointError(f"{error}; it cannot be set aside: {refused.strerror}") from None
            return None

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Read the manifest; each stage's file is verified when it is opened.

        Raises CorruptError, and CheckpointError where the manifest cannot be read now.
        """
        manifest = path / _MANIFEST
        try:
            if manifest.stat().st_size > MANIFEST_BYTES_MAX:
                raise ValueError("it is too long")
            fields = json.loads(manifest.read_text(encoding="utf-8"))
            if fields["format"] != FORMAT:
                raise ValueError(f"its format is {fields['format']!r}, this software reads {FORMAT}")
            return cls(path, fields)
        except OSError as error:
            raise unreadable(manifest, error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"{manifest} is corrupt: {error}") from error

    @property
    def digests(self) -> tuple[str, ...]:
        """The digest of every stage's file, also of files that were not copied here; empty: some are unknown."""
        digests = self.extra.get(_DIGESTS)
        if isinstance(digests, list) and len(digests) == self.stages:
            return tuple(str(digest) for digest in digests)
        return tuple(self._files[stage][0] for stage in range(self.stages)) if self.names_all_stages else ()

    @property
    def stages_held(self) -> tuple[int, ...]:
        """The stages whose file is here in its full size, with the digest that `digests` has for it."""
        digests = self.digests
        return tuple(s for s in range(self.stages) if self.has(s) and digests and self._files[s][0] == digests[s])

    @property
    def was_whole(self) -> bool:
        """Whether every stage of the version was on several disks once, as far as is known here."""
        return bool(self.extra.get(_WHOLE, True))

    def set_whole(self, whole: bool) -> None:
        """Record whether the version was whole once. Raises CheckpointError."""
        if whole != self.was_whole:
            with self._adding:
                self.extra[_WHOLE] = whole
                self._save()

    def offers(self, stage: int) -> bool:
        """Return whether others may copy a stage's file: it belongs to the version, as far as that is known."""
        return stage in self.stages_held or (not self.digests and self.has(stage))

    @property
    def complete(self) -> bool:
        """Whether the manifest names every stage and each file has its size (`state` verifies the digests)."""
        return all(self.has(stage) for stage in range(self.stages))

    @property
    def names_all_stages(self) -> bool:
        """Whether the manifest names every stage: each file was written once, though it may be lost by now."""
        return all(stage in self._files for stage in range(self.stages))

    def has(self, stage: int) -> bool:
        """Return whether the manifest names the stage's file and the file has its size."""
        path = self._path(stage)
        return stage in self._files and path.is_file() and path.stat().st_size == self._files[stage][1]

    def writer(self, stage: int, elements: Mapping[str, int]) -> TensorFileWriter:
        """Return a writer for a stage's file. elements: tensor name -> number of elements, in the order of writing."""
        if not 0 <= stage < self.stages:
            raise CheckpointError(f"stage {stage} does not exist: the run has the stages 0 to {self.stages - 1}")
        return TensorFileWriter(self._path(stage), {name: (count,) for name, count in elements.items()})

    def add(self, stage: int, writer: TensorFileWriter, digest: str | None = None) -> str:
        """Finish a stage's file, add it to the manifest, and return its digest.

        digest: the expected one, for a copy; a file with another one is removed. Raises WrongCopyError.
        """
        found = writer.finish()
        if digest is not None and found != digest:
            writer.path.unlink(missing_ok=True)
            raise WrongCopyError(f"the copy of stage {stage} at version {self.version} is not what was sent")
        with self._adding:
            self._files[stage] = (found, writer.size_bytes)
            self._save()
        return found

    def digest(self, stage: int) -> str:
        """Return the digest of a stage's file. Raises CheckpointError when the manifest does not name the stage."""
        if stage not in self._files:
            raise CheckpointError(f"{self.path} holds no state of stage {stage}")
        return self._files[stage][0]

    def state(self, stage: int) -> StageFile:
        """Open and verify a stage's file. Raises CheckpointError."""
        return StageFile(self._path(stage), self.digest(stage))

    def set_aside(self, stage: int, reason: str) -> None:
        """Rename a stage's corrupt file, so that a copy can replace it.

        `digests` still has the expected digest. An error of the disk is logged.
        """
        with self._adding:
            if self.digests:
                self.extra[_DIGESTS] = list(self.digests)
            self._files.pop(stage, None)
            try:
                kept = f"; it is kept as {set_aside(self._path(stage)).name}" if self._path(stage).exists() else ""
                log.warning("%s%s", reason, kept)
                self._save()
            except (OSError, CheckpointError) as error:
                log.warning("%s; it cannot be set aside: %s", reason, error)

    def remove_drafts(self) -> None:
        """Remove half-written files of a killed process. No writer of this folder may be open."""
        with suppress(OSError):
            remove_own(self.path, _DRAFT_NAMES)

    def remove(self) -> None:
        """Remove the files that swarmflow has written into the folder. An error of the disk is logged."""
        _remove(self.path)

    def wrong_stages(self) -> list[tuple[int, CheckpointError]]:
        """Read every file; return (stage, error) of each that is missing, corrupt (CorruptError) or unreadable now."""
        wrong: list[tuple[int, CheckpointError]] = []
        for stage in range(self.stages):
            try:
                self.state(stage).close()
            except CheckpointError as error:
                wrong.append((stage, error))
        return wrong

    def _path(self, stage: int) -> Path:
        return self.path / f"stage-{stage}.safetensors"

    def _save(self) -> None:
        fields = {
            "format": FORMAT,
            "version": self.version,
            "run": self.run,
            "stages": self.stages,
            "extra": self.extra,
            "files": {
                str(stage): {"digest": digest, "bytes": size} for stage, (digest, size) in sorted(self._files.items())
            },
        }
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / _MANIFEST, json.dumps(fields, indent=1).encode())
            sync_folder(self.path)
        except OSError as error:
            if error.errno in NO_ROOM_ERRNOS:
                raise no_room(_MANIFEST, self.path, MANIFEST_BYTES_MAX, str(error.strerror)) from error
            raise CheckpointError(f"{self.path / _MANIFEST} cannot be written: {error.strerror or error}") from error


def _remove(path: Path) -> None:
    try:
        remove_own(path, _STAGE_NAMES)
        remove_own(path, _MANIFEST_NAMES)  # last: without it nobody would find the others
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error.strerror)


def checkpoints(root: Path) -> list[Checkpoint]:
    """Return the checkpoints under a folder, the newest first; a manifest that cannot be read is logged.

    Raises CheckpointError where the folder cannot be listed now.
    """
    found: list[Checkpoint] = []
    for path in _paths(root):
        try:
            found.append(Checkpoint.open(path))
        except CheckpointError as error:
            log.warning("a checkpoint is of no use: %s", error)
    return found


def _paths(root: Path) -> list[Path]:
    """Return the folders of checkpoints that have a manifest, the newest first. Raises CheckpointError."""
    try:
        found = [path for path in root.iterdir() if _NAME.fullmatch(path.name)] if root.is_dir() else []
        found = [path for path in found if (path / _MANIFEST).is_file()]
    except OSError as error:
        raise CheckpointError(f"{root} cannot be read now: {error.strerror or error}") from error
    return sorted(found, key=lambda path: -int(path.name.split("-")[1]))


def newest_complete(root: Path, run: str | None = None, *, mend: bool = False) -> Checkpoint | None:
    """Return the newest checkpoint that has every stage with the right digest; None: none was ever written in full.

    run: consider only checkpoints with this fingerprint. A checkpoint that was written in full, and has a corrupt,
    short or missing file now, is skipped with a warning. Raises CheckpointError where all were skipped: the run must
    not start again from version 0.
    mend: set corrupt files aside, so that each is logged once and a copy can replace it; only for the owner of the
    folder. A file that cannot be read now is left as it is.
    """
    failure: CheckpointError | None = None
    for path in _paths(root):
        try:
            checkpoint = Checkpoint.open(path)
            if not checkpoint.names_all_stages or run not in (None, checkpoint.run):
                continue
            wrong = checkpoint.wrong_stages()
            if not wrong:
                return checkpoint
            for stage, error in wrong:
                if mend and isinstance(error, CorruptError):
                    checkpoint.set_aside(stage, str(error))
                else:
                    log.warning("a checkpoint is of no use: %s", error)
            failure = failure or wrong[0][1]
        except CheckpointError as error:
            log.warning("a checkpoint is of no use: %s", error)
            failure = failure or error
    if failure is not None:
        raise failure
    return None


def readable(root: Path, run: str) -> list[Checkpoint]:
    """Return the checkpoints of a run under a folder, the newest first; a corrupt manifest is logged."""
    return [checkpoint for checkpoint in checkpoints(root) if checkpoint.run == run]


def newest_known(root: Path, run: str) -> int:
    """Return the newest version whose manifest has all digests: some process had it complete once. 0: none."""
    return max((checkpoint.version for checkpoint in readable(root, run) if checkpoint.digests), default=0)


def prune(root: Path, run: str, keep: int = GENERATIONS_KEPT, spare: Collection[int] = ()) -> None:
    """Delete the checkpoints of a run that are older than its `keep` newest complete ones.

    spare: versions that are never deleted. Generations of other runs are neither counted nor deleted.
    """
    found = readable(root, run)
    complete = [checkpoint.version for checkpoint in found if checkpoint.complete]
    if len(complete) < keep:
        return
    for checkpoint in found:
        if checkpoint.version < complete[keep - 1] and checkpoint.version not in spare:
            checkpoint.remove()


def remove_unfinished(root: Path, run: str, before: int) -> None:
    """Delete a run's checkpoints before this version that no process ever completed: nothing can use them."""
    for checkpoint in readable(root, run):
        if checkpoint.version < before and not checkpoint.digests:
            checkpoint.remove()


def remove_all_but(root: Path, keep: Collection[int]) -> None:
    """Delete all versions of all runs under a folder except `keep`, also a version that has only half-written files.

    An error while deleting is logged. Raises OSError where the folder cannot be read.
    """
    for path in list(root.iterdir()) if root.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is not None and int(name[1]) not in keep:
            _remove(path)
