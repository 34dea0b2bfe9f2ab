"""Committed state of stages on disk: one folder a version, one safetensors file a stage, roots in a manifest.

FOLDER/version-00000040/stage-0.safetensors    flat tensors "own.params", "own.exp_avg", ..., "tied.params", ...
FOLDER/version-00000040/manifest.json          version, run, number of stages, root and size a stage
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from swarmflow.compute.stage_file import StageFile
from swarmflow.compute.tensorfile import TensorFileWriter, unreadable
from swarmflow.errors import CheckpointError, CorruptError, WrongCopyError
from swarmflow.files import NO_ROOM_ERRNOS, no_room, set_aside, sync_folder, write_whole
from swarmflow.ownership import names, remove_own

log = logging.getLogger("swarmflow")

FORMAT = 2  # of the manifest; another one is refused
GENERATIONS_KEPT = 2  # complete versions: the older one serves where the newer one turns out to be corrupt
MANIFEST_BYTES_MAX = 1 << 20  # a longer manifest is corrupt, and is not read into memory
_MANIFEST = "manifest.json"
_WHOLE = "whole"  # the key in `extra` of whether the version was whole once (Holding.whole)
_ROOTS = "roots"  # the key in `extra` of the list of every stage's root: a copy may lack some of the files
_PROOF = "proof"  # the key in `extra` of a trainer's certificate of the version (Snapshot.proof), in hexadecimal
_NAME = re.compile(r"version-(\d{8,})")
_DRAFT_NAMES = names(r"\.stage-\d+\.safetensors\.[0-9a-f]{8}\.part")
_STAGE_NAMES = names(r"stage-\d+\.safetensors", _DRAFT_NAMES.pattern)
_MANIFEST_NAMES = names(r"manifest\.json")


def version_folder(folder: Path, version: int) -> Path:
    """Return the folder of a version's state under `folder`."""
    return folder / f"version-{version:08d}"


class Checkpoint:
    """The folder of one committed version at one process; complete when it has the file of every stage."""

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path = path
        self.version = int(manifest["version"])
        self.run = str(manifest["run"])
        self.stages = int(manifest["stages"])
        self.extra: dict[str, Any] = dict(manifest["extra"])
        self._files: dict[int, tuple[str, int]] = {
            int(stage): (str(file["root"]), int(file["bytes"])) for stage, file in manifest["files"].items()
        }
        self._adding = threading.Lock()  # several threads add stages, and the manifest must name each stage

    @classmethod
    def begin(
        cls, folder: Path, version: int, run: str, stages: int, extra: Mapping[str, Any] | None = None
    ) -> Checkpoint:
        """Return the checkpoint of a version; a missing one is created.

        run: fingerprint of the run. extra: small JSON values that the manifest stores. Raises CheckpointError when the
        folder has another run's state, or cannot be written.
        """
        path = version_folder(folder, version)
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
    def begin_copy(cls, folder: Path, version: int, run: str, stages: int, roots: Sequence[str]) -> Checkpoint:
        """Return a checkpoint to write the files of a version into.

        roots: of every stage's file, where the files are copies; empty where this process computed them. An earlier
        copy with the same roots is continued, and so are files that this process computed and that have them. Any
        other content of the folder is incomplete or from another lineage: it is deleted, because its files do not fit
        the new ones. Raises CheckpointError.
        """
        path = version_folder(folder, version)
        found = cls._readable(path)
        if found is not None:
            found.remove_drafts()
            if found.run == run and not (roots and found._becomes(roots)):
                found.remove()
        return cls.begin(folder, version, run, stages, {_ROOTS: list(roots)} if roots else None)

    def _becomes(self, roots: Sequence[str]) -> bool:
        """Return whether the files here belong to a version with these roots, which they are named by from now on."""
        if self.roots:
            return self.roots == tuple(roots)
        own = [stage for stage in range(self.stages) if self.has(stage)]
        if not own or any(self._files[stage][0] != roots[stage] for stage in own):
            return False
        self.extra[_ROOTS] = list(roots)
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
    def roots(self) -> tuple[str, ...]:
        """The root of every stage's file, also of files that were not copied here; empty: some are unknown."""
        roots = self.extra.get(_ROOTS)
        if isinstance(roots, list) and len(roots) == self.stages:
            return tuple(str(root) for root in roots)
        return tuple(self._files[stage][0] for stage in range(self.stages)) if self.names_all_stages else ()

    @property
    def stages_held(self) -> tuple[int, ...]:
        """The stages whose file is here in its full size, with the root that `roots` has for it."""
        roots = self.roots
        return tuple(s for s in range(self.stages) if self.has(s) and roots and self._files[s][0] == roots[s])

    @property
    def was_whole(self) -> bool:
        """Whether every stage of the version was on several disks once, as far as is known here."""
        return bool(self.extra.get(_WHOLE, True))

    @property
    def proof(self) -> bytes:
        """That a trainer has certified the version with these roots; empty: it is not known here."""
        return bytes.fromhex(str(self.extra.get(_PROOF, "")))

    def note(self, *, whole: bool, proof: bytes | None = None) -> None:
        """Record whether the version was whole once, and its proof (None: as before). Raises CheckpointError."""
        noted = {_WHOLE: whole, _PROOF: (self.proof if proof is None else proof).hex()}
        if noted != {_WHOLE: self.was_whole, _PROOF: self.proof.hex()}:
            with self._adding:
                self.extra |= noted
                self._save()

    def offers(self, stage: int) -> bool:
        """Return whether others may copy a stage's file: it belongs to the version, as far as that is known."""
        return stage in self.stages_held or (not self.roots and self.has(stage))

    @property
    def complete(self) -> bool:
        """Whether the manifest names every stage and each file has its size (`state` verifies the roots)."""
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

    def add(self, stage: int, writer: TensorFileWriter, root: str | None = None) -> str:
        """Finish a stage's file, add it to the manifest, and return its root.

        root: the expected one, for a copy; a file with another one is removed. Raises WrongCopyError.
        """
        writer.finish()
        with StageFile(writer.path) as file:
            found = file.root
        if root is not None and found != root:
            writer.path.unlink(missing_ok=True)
            raise WrongCopyError(f"the copy of stage {stage} at version {self.version} is not what was sent")
        with self._adding:
            self._files[stage] = (found, writer.size_bytes)
            self._save()
        return found

    def root(self, stage: int) -> str:
        """Return the root of a stage's file. Raises CheckpointError when the manifest does not name the stage."""
        if stage not in self._files:
            raise CheckpointError(f"{self.path} holds no state of stage {stage}")
        return self._files[stage][0]

    def state(self, stage: int) -> StageFile:
        """Open and verify a stage's file. Raises CheckpointError."""
        return StageFile(self._path(stage), self.root(stage))

    def set_aside(self, stage: int, reason: str) -> None:
        """Rename a stage's corrupt file, so that a copy can replace it.

        `roots` still has the expected root. An error of the disk is logged.
        """
        with self._adding:
            if self.roots:
                self.extra[_ROOTS] = list(self.roots)
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
            "files": {str(stage): {"root": root, "bytes": size} for stage, (root, size) in sorted(self._files.items())},
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


def checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints under a folder, the newest first; a manifest that cannot be read is logged.

    Raises CheckpointError where the folder cannot be listed now.
    """
    found: list[Checkpoint] = []
    for path in _paths(folder):
        try:
            found.append(Checkpoint.open(path))
        except CheckpointError as error:
            log.warning("a checkpoint is of no use: %s", error)
    return found


def _paths(folder: Path) -> list[Path]:
    """Return the folders of checkpoints that have a manifest, the newest first. Raises CheckpointError."""
    try:
        found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
        found = [path for path in found if (path / _MANIFEST).is_file()]
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read now: {error.strerror or error}") from error
    return sorted(found, key=lambda path: -int(path.name.split("-")[1]))


def newest_complete(folder: Path, run: str | None = None, *, mend: bool = False) -> Checkpoint | None:
    """Return the newest checkpoint that has every stage with the right root; None: none was ever written in full.

    run: consider only checkpoints with this fingerprint. A checkpoint that was written in full, and has a corrupt,
    short or missing file now, is skipped with a warning. Raises CheckpointError where all were skipped: the run must
    not start again from version 0.
    mend: set corrupt files aside, so that each is logged once and a copy can replace it; only for the owner of the
    folder. A file that cannot be read now is left as it is.
    """
    failure: CheckpointError | None = None
    for path in _paths(folder):
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


def readable(folder: Path, run: str) -> list[Checkpoint]:
    """Return the checkpoints of a run under a folder, the newest first; a corrupt manifest is logged."""
    return [checkpoint for checkpoint in checkpoints(folder) if checkpoint.run == run]


def newest_known(folder: Path, run: str) -> int:
    """Return the newest version whose manifest has all roots: some process had it complete once. 0: none."""
    return max((checkpoint.version for checkpoint in readable(folder, run) if checkpoint.roots), default=0)


def prune(folder: Path, run: str, keep: int = GENERATIONS_KEPT, spare: Collection[int] = ()) -> None:
    """Delete the checkpoints of a run that are older than its `keep` newest complete ones.

    spare: versions that are never deleted. Generations of other runs are neither counted nor deleted.
    """
    for checkpoint in superseded(folder, run, keep):
        if checkpoint.version not in spare:
            checkpoint.remove()


def superseded(folder: Path, run: str, keep: int = GENERATIONS_KEPT) -> list[Checkpoint]:
    """Return the checkpoints of a run that are older than its `keep` newest complete ones."""
    found = readable(folder, run)
    complete = [checkpoint.version for checkpoint in found if checkpoint.complete]
    if len(complete) < keep:
        return []
    return [checkpoint for checkpoint in found if checkpoint.version < complete[keep - 1]]


def remove_unfinished(folder: Path, run: str, before: int) -> None:
    """Delete a run's checkpoints before this version that no process ever completed: nothing can use them."""
    for checkpoint in readable(folder, run):
        if checkpoint.version < before and not checkpoint.roots:
            checkpoint.remove()


def remove_all_but(folder: Path, keep: Collection[int]) -> None:
    """Delete all versions of all runs under a folder except `keep`, also a version that has only half-written files.

    An error while deleting is logged. Raises OSError where the folder cannot be read.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is not None and int(name[1]) not in keep:
            _remove(path)
