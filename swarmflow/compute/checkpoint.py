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

FORMAT = 1
GENERATIONS_KEPT = 2
MANIFEST_BYTES_MAX = 1 << 20
_MANIFEST = "manifest.json"
_DIGESTS = "digests"  # the key in `extra` under which a copy says what the files of all stages are
_NAME = re.compile(r"version-(\d{8,})")
_DRAFT_NAMES = names(r"\.stage-\d+\.safetensors\.[0-9a-f]{8}\.part")
_STAGE_NAMES = names(r"stage-\d+\.safetensors", _DRAFT_NAMES.pattern)
_MANIFEST_NAMES = names(r"manifest\.json")


def version_folder(root: Path, version: int) -> Path:
    """Where the state of a version lies under a folder."""
    return root / f"version-{version:08d}"


def tensor_name(group: str, part: str) -> str:
    """Name in a stage's file of a group's `params` or of one of its optimizer tensors."""
    return f"{group}.{part}"


class StageFile:
    """A stage's file, open for reading by ranges. elements: tensor name -> number of elements.

    Opening it reads it whole once: raises CorruptError when its digest, size or header is wrong, CheckpointError when
    it cannot be read now.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        shapes, self._data_at = read_header(path)
        if file_digest(path) != digest:
            raise CorruptError(f"{path} is corrupt: its digest is not the one in {_MANIFEST}")
        if any(len(shape) != 1 for shape in shapes.values()):
            raise CorruptError(f"{path} does not hold flat tensors")
        self.elements = {name: shape[0] for name, shape in shapes.items()}
        self._reading = threading.Lock()  # closed meanwhile, its descriptor could be another file's when it is read
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise unreadable(path, error) from error

    def __enter__(self) -> StageFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        with self._reading:
            self._file.close()

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Elements start to stop of a tensor, as little-endian fp32 bytes. Safe to call from several threads.

        Raises CheckpointError for what is not there or cannot be read, and when the file was closed.
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


class Generation:
    """What one process holds of one committed version; complete when it holds every stage."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.version = int(manifest["version"])
        self.run = str(manifest["run"])
        self.stages = int(manifest["stages"])
        self.extra: dict[str, Any] = dict(manifest["extra"])
        self._files: dict[int, tuple[str, int]] = {
            int(stage): (str(file["digest"]), int(file["bytes"])) for stage, file in manifest["files"].items()
        }
        self._adding = threading.Lock()  # stages are added at once, and the manifest must name them all

    @classmethod
    def begin(
        cls, root: Path, version: int, run: str, stages: int, extra: Mapping[str, Any] | None = None
    ) -> Generation:
        """The generation of a version, made when it is not there. run: fingerprint of the run. extra: small JSON.

        Raises CheckpointError when the folder holds another run's state, or cannot be written.
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
    def begin_copy(cls, root: Path, version: int, run: str, stages: int, digests: Sequence[str]) -> Generation:
        """The generation of a version that is to be written, or copied where the files' digests are known.

        What is there already is gone on with where it is a copy of the same; otherwise it is of another history, or cut
        short, and is deleted: files of both would not fit together. Raises CheckpointError.
        """
        path = version_folder(root, version)
        found = cls._readable(path)
        if found is not None:
            found.remove_drafts()
            if found.run == run and (not digests or found.digests != tuple(digests)):
                found.remove()
        return cls.begin(root, version, run, stages, {_DIGESTS: list(digests)} if digests else None)

    @classmethod
    def _readable(cls, path: Path) -> Generation | None:
        """What is there of a version; a folder whose manifest is corrupt is set aside, and with it the version.

        Raises CheckpointError where it cannot be read now.
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
    def open(cls, path: Path) -> Generation:
        """Reads the manifest; the stages' files are verified when they are opened.

        Raises CorruptError, and CheckpointError where it cannot be read now.
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
        """Of the files of all stages: as they were told, where only some of them are copied here; empty: not known."""
        digests = self.extra.get(_DIGESTS)
        if isinstance(digests, list) and len(digests) == self.stages:
            return tuple(str(digest) for digest in digests)
        return tuple(self._files[stage][0] for stage in range(self.stages)) if self.finished else ()

    @property
    def held(self) -> tuple[int, ...]:
        """The stages whose file is here, as it should be."""
        digests = self.digests
        return tuple(s for s in range(self.stages) if self.has(s) and digests and self._files[s][0] == digests[s])

    @property
    def complete(self) -> bool:
        """Whether the file of every stage is named and there in its size (digests are checked by `state`)."""
        return all(self.has(stage) for stage in range(self.stages))

    @property
    def finished(self) -> bool:
        """Whether the file of every stage is named, be it there or not: all of them were written once."""
        return all(stage in self._files for stage in range(self.stages))

    def has(self, stage: int) -> bool:
        """Whether the stage's file is named and there in its size."""
        path = self._path(stage)
        return stage in self._files and path.is_file() and path.stat().st_size == self._files[stage][1]

    def writer(self, stage: int, elements: Mapping[str, int]) -> TensorFileWriter:
        """A file to fill with the stage's flat tensors: name -> number of elements, in this order."""
        if not 0 <= stage < self.stages:
            raise CheckpointError(f"stage {stage} does not exist: the run has the stages 0 to {self.stages - 1}")
        return TensorFileWriter(self._path(stage), {name: (count,) for name, count in elements.items()})

    def add(self, stage: int, writer: TensorFileWriter, digest: str | None = None) -> str:
        """Finishes a stage's file and names it in the manifest; returns its digest.

        digest: what it must be when it is a copy. Raises WrongCopyError, and removes the file, when it is not.
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
        """The digest of a stage's file. Raises CheckpointError when it is not here."""
        if stage not in self._files:
            raise CheckpointError(f"{self.path} holds no state of stage {stage}")
        return self._files[stage][0]

    def state(self, stage: int) -> StageFile:
        """Opens and verifies a stage's file. Raises CheckpointError."""
        return StageFile(self._path(stage), self.digest(stage))

    def set_aside(self, stage: int, reason: str) -> None:
        """Keeps a stage's file, which is corrupt, under another name, so that a copy of it can come in its place.

        What its digest should be stays known. A disk that refuses is told of.
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
        """Removes what was left half-written by a process that was killed; nobody may be writing now."""
        with suppress(OSError):
            remove_own(self.path, _DRAFT_NAMES)

    def remove(self) -> None:
        """Removes what swarmflow has written into the folder; a disk that refuses is told of."""
        _remove(self.path)

    def wrong_stages(self) -> list[tuple[int, CheckpointError]]:
        """The stages whose files are missing, corrupt (CorruptError) or cannot be read now; reads all of them."""
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


def generations(root: Path) -> list[Generation]:
    """The generations under a folder, the newest first; one whose manifest cannot be read is told of.

    Raises CheckpointError where the folder cannot be listed now.
    """
    found: list[Generation] = []
    for path in _paths(root):
        try:
            found.append(Generation.open(path))
        except CheckpointError as error:
            log.warning("a checkpoint is of no use: %s", error)
    return found


def _paths(root: Path) -> list[Path]:
    """The folders of generations that have a manifest, the newest first. Raises CheckpointError."""
    try:
        found = [path for path in root.iterdir() if _NAME.fullmatch(path.name)] if root.is_dir() else []
        found = [path for path in found if (path / _MANIFEST).is_file()]
    except OSError as error:
        raise CheckpointError(f"{root} cannot be read now: {error.strerror or error}") from error
    return sorted(found, key=lambda path: -int(path.name.split("-")[1]))


def newest_complete(root: Path, run: str | None = None, *, mend: bool = False) -> Generation | None:
    """The newest generation that holds every stage, whose digests are right; None when there is none.

    run: consider this run alone. What is corrupt, cut short or lost in part is left out with a warning; when nothing
    else is there, raises CheckpointError rather than to let a run start again from nothing. mend: set aside what is
    corrupt, so that it is told of once and a copy can come in its place; for who owns the folder. What cannot be read
    now stays as it is.
    """
    failure: CheckpointError | None = None
    for path in _paths(root):
        try:
            generation = Generation.open(path)
            if not generation.finished or run not in (None, generation.run):
                continue
            wrong = generation.wrong_stages()
            if not wrong:
                return generation
            for stage, error in wrong:
                if mend and isinstance(error, CorruptError):
                    generation.set_aside(stage, str(error))
                else:
                    log.warning("a checkpoint is of no use: %s", error)
            failure = failure or wrong[0][1]
        except CheckpointError as error:
            log.warning("a checkpoint is of no use: %s", error)
            failure = failure or error
    if failure is not None:
        raise failure
    return None


def readable(root: Path, run: str) -> list[Generation]:
    """The generations of a run under a folder, the newest first; one whose manifest is corrupt is told of."""
    return [generation for generation in generations(root) if generation.run == run]


def newest_known(root: Path, run: str) -> int:
    """The newest version of a run of which a manifest here says that it was whole somewhere once; 0: none."""
    return max((generation.version for generation in readable(root, run) if generation.digests), default=0)


def prune(root: Path, run: str, keep: int = GENERATIONS_KEPT, spare: Collection[int] = ()) -> None:
    """Deletes what is older than the `keep` newest complete generations of a run; incomplete newer ones stay.

    spare: versions that stay in any case. What is another run's is neither counted nor touched.
    """
    found = readable(root, run)
    complete = [generation.version for generation in found if generation.complete]
    if len(complete) < keep:
        return
    for generation in found:
        if generation.version < complete[keep - 1] and generation.version not in spare:
            generation.remove()


def remove_unfinished(root: Path, run: str, before: int) -> None:
    """Deletes what was begun of a run's versions before this one and was never whole anywhere: it only takes room."""
    for generation in readable(root, run):
        if generation.version < before and not generation.digests:
            generation.remove()


def remove_all_but(root: Path, keep: Collection[int]) -> None:
    """Deletes every version under a folder but these, of whichever run, also one of which nothing but drafts is there.

    A disk that refuses is told of. Raises OSError where the folder cannot be read.
    """
    for path in list(root.iterdir()) if root.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is not None and int(name[1]) not in keep:
            _remove(path)
