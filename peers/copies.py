"""Stages' states on a peer's disk: its own at versions to keep, and copies of others, so that none is in one place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from swarmflow.compute.checkpoint import Checkpoint, checkpoints, readable
from swarmflow.compute.stage_file import StageFile
from swarmflow.compute.stage_state import StageState, chunks
from swarmflow.compute.tensorfile import file_bytes
from swarmflow.core.protocol.actions import DropCopies, KeepCopies
from swarmflow.core.protocol.events import CopiesChanged, StageWritten
from swarmflow.core.protocol.types import Holding, Snapshot
from swarmflow.errors import CheckpointError, CorruptError, NetworkError, SwarmflowError
from swarmflow.files import require_room
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.execution.state_transfer import Hold, Listing, all_finite, copy_stage, never
from swarmflow.runtime.operations.exporting import state_tensor_lengths

log = logging.getLogger("swarmflow")

AGAIN_S = 30.0
# A run has two whole versions on disks and copies a third; one more may be written meanwhile.
VERSIONS_MAX = 4


class CopyKeeper:
    """The copies of one run that this process keeps, over all of its lives.

    folder: of the copies, and of the own stage's versions: version 40 of stage 1 is
    FOLDER/version-00000040/stage-1.safetensors, as in a trainer's checkpoints. keeps: whether it copies other stages.
    again_s: after which the disk is read again where it failed.
    """

    def __init__(self, folder: Path, keeps: bool = True, again_s: float = AGAIN_S) -> None:
        self._base = folder
        self._folder = folder
        self.keeps = keeps
        self._again_s = again_s
        self.hold: Hold = never  # whether the machine of this life lets no copy come in at the moment
        self._unread: set[tuple[int, int]] = set()  # (stage, version): a copy that the disk failed to read
        self._unlisted = False  # the disk failed to list the copies
        self._manifest: Manifest | None = None
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[tuple[int, int], StageFile] = {}
        self._copying = asyncio.Lock()  # one after the other: copying must leave the link to training

    async def begin(self, session: Session, manifest: Manifest) -> tuple[Holding, ...]:
        """Begin a life, and return what is on the disk. Corrupt files are logged and set aside."""
        first = self._manifest is None or self._manifest.fingerprint != manifest.fingerprint
        if first:
            self._close(lambda stage, version: True)
            self._folder = self._of_cut(manifest.cuts)
        self._session, self._manifest, self._loop = session, manifest, asyncio.get_running_loop()
        session.spawn(self._look_again(session), "looking again at copies that could not be read")
        return await asyncio.to_thread(self._holdings, verify=first)

    def _of_cut(self, cuts: int) -> Path:
        """Return the folder of the copies of a run that was cut anew so often."""
        return self._base.with_name(f"{self._base.name}-{cuts}") if cuts else self._base

    def keep(self, action: KeepCopies) -> None:
        """Perform KeepCopies."""
        assert self._session is not None, "the run is known"
        self._session.spawn(self._keep(self._session, action), "keeping copies")

    def drop(self, action: DropCopies) -> None:
        """Perform DropCopies."""
        assert self._session is not None, "the run is known"
        self._session.spawn(self._drop(self._session, action), "deleting copies")

    def write(self, stage: int, version: int, state: StageState, done: Future[None]) -> None:
        """Perform WriteStage, in a thread. state: of the stage at that version, which changes once that is done."""
        assert self._session is not None, "the run is known"
        self._session.spawn(self._write(self._session, stage, version, state, done), "writing the own stage")

    def listing(self, stage: int, version: int, root: str) -> Listing:
        """List the tensors of a stage's version. root: that its file must have, empty: any.

        Raises NetworkError when there is no such copy.
        """
        return Listing(self._source(stage, version, root).elements)

    def read(self, stage: int, version: int, root: str, tensor: str, start: int, stop: int) -> bytes:
        """Read a part of a tensor. Raises NetworkError."""
        try:
            return self._source(stage, version, root).read(tensor, start, stop)
        except (KeyError, ValueError, OSError) as error:
            raise NetworkError(f"there is no such part of the state: {error}") from None

    async def _keep(self, session: Session, action: KeepCopies) -> None:
        manifest, failed = self._manifest, ""
        assert manifest is not None, "a peer that keeps copies knows the run"
        async with self._copying:
            try:
                snapshot = action.snapshot
                if not any(action.holders) and not await asyncio.to_thread(self._has_file, snapshot.version):
                    why = "it was not written here"
                    session.driver.post(CopiesChanged(await asyncio.to_thread(self._holdings), why))
                    return
                checkpoint = await asyncio.to_thread(
                    Checkpoint.begin_copy,
                    self._folder,
                    snapshot.version,
                    manifest.fingerprint,
                    manifest.stages,
                    snapshot.roots,
                )
                was_whole = bool(checkpoint.stages_held) and checkpoint.was_whole
                whole = action.whole or was_whole
                await asyncio.to_thread(checkpoint.note, whole=whole, proof=snapshot.proof)
                self._close(
                    lambda stage, version: version == checkpoint.version and stage not in checkpoint.stages_held
                )
                holders = dict(zip(action.stages, action.holders, strict=True))
                missing = [stage for stage in action.stages if stage not in checkpoint.stages_held]
                elements = {stage: state_tensor_lengths(manifest, stage) for stage in missing}
                needed = sum(file_bytes(of) for of in elements.values())
                await asyncio.to_thread(self._require_few, manifest, needed)
                require_room(f"a copy of version {snapshot.version}", checkpoint.path, needed)
                for stage in missing:
                    what = elements[stage], snapshot.roots[stage]
                    await copy_stage(session.requests, checkpoint, stage, holders[stage], *what, hold=self.hold)
            except (SwarmflowError, OSError) as error:
                failed = str(error)
                log.warning("no copy of version %d is kept here: %s", action.snapshot.version, failed)
            session.driver.post(CopiesChanged(await asyncio.to_thread(self._holdings), failed))

    def _has_file(self, version: int) -> bool:
        found = [checkpoint for checkpoint in self._checkpoints() if checkpoint.version == version]
        return any(checkpoint.has(stage) for checkpoint in found for stage in range(checkpoint.stages))

    def _require_few(self, manifest: Manifest, needed_bytes: int) -> None:
        """Raise CheckpointError where copies would take more than a run needs, whatever a leader asks for."""
        sizes = [file_bytes(state_tensor_lengths(manifest, stage)) for stage in range(manifest.stages)]
        held_bytes = sum(sizes[stage] for checkpoint in self._checkpoints() for stage in checkpoint.stages_held)
        if held_bytes + needed_bytes > VERSIONS_MAX * sum(sizes):
            raise CheckpointError(f"this disk has as much of earlier versions as {VERSIONS_MAX} whole ones would take")

    async def _write(self, session: Session, stage: int, version: int, state: StageState, done: Future[None]) -> None:
        manifest, root, failed = self._manifest, "", ""
        assert manifest is not None, "a peer that keeps copies knows the run"
        folder = self._folder
        self._close(lambda _, other: other == version)
        try:
            root = await asyncio.to_thread(_write_stage, folder, manifest, stage, version, state)
        except (SwarmflowError, OSError) as error:
            failed = str(error)
            log.warning("version %d of stage %d is not kept here: %s", version, stage, failed)
        finally:
            done.set_result(None)
        session.driver.post(StageWritten(stage, version, root, failed))

    async def _drop(self, session: Session, action: DropCopies) -> None:
        async with self._copying:
            try:
                await asyncio.to_thread(self._delete, action)
            except (SwarmflowError, OSError) as error:
                log.warning("copies that nobody needs any more may be left: %s", error)
            session.driver.post(CopiesChanged(await asyncio.to_thread(self._holdings)))

    def _delete(self, action: DropCopies) -> None:
        self._close(lambda stage, version: not action.oldest <= version <= action.newest)
        whole: list[Checkpoint] = []
        for checkpoint in self._checkpoints():
            if not action.oldest <= checkpoint.version <= action.newest:
                checkpoint.remove()
            elif checkpoint.version == action.whole:
                whole.append(checkpoint)
        assert self._manifest is not None, "a leader has asked for it"
        former = (self._of_cut(cuts) for cuts in range(self._manifest.cuts))
        for checkpoint in (each for folder in former for each in checkpoints(folder)):
            if checkpoint.version < action.newest:  # by the present cut there is a newer one
                checkpoint.remove()
        for checkpoint in whole:  # last: a full disk takes a note once something is deleted
            checkpoint.note(whole=True)

    def _close(self, of_no_use: Callable[[int, int], bool]) -> None:
        """Close the files of these (stage, version), whose content is replaced."""
        for key in list(self._open):  # other threads may open more meanwhile, for requests
            if of_no_use(*key):
                self._open.pop(key).close()

    async def _look_again(self, session: Session) -> None:
        while True:
            await asyncio.sleep(self._again_s)
            if self._unread or self._unlisted:
                session.driver.post(CopiesChanged(await asyncio.to_thread(self._holdings)))

    def _checkpoints(self) -> list[Checkpoint]:
        if self._manifest is None:
            return []
        return readable(self._folder, self._manifest.fingerprint)

    def _holdings(self, verify: bool = False) -> tuple[Holding, ...]:
        found: list[Holding] = []
        try:
            mine = self._checkpoints()
        except CheckpointError as error:
            log.warning("no copy is offered: %s; it is tried again", error)
            self._unlisted = True
            return ()
        verify, self._unlisted = verify or self._unlisted, False
        for checkpoint in mine:
            version = checkpoint.version
            trusted = {stage for stage in checkpoint.stages_held if not verify and (stage, version) not in self._unread}
            stages = [stage for stage in checkpoint.stages_held if stage in trusted or self._right(checkpoint, stage)]
            if stages:
                snapshot = Snapshot(version, checkpoint.roots, checkpoint.proof)
                found.append(Holding(snapshot, tuple(stages), checkpoint.was_whole))
        return tuple(found)

    def _right(self, checkpoint: Checkpoint, stage: int) -> bool:
        key = (stage, checkpoint.version)
        try:
            checkpoint.state(stage).close()
        except CorruptError as error:
            checkpoint.set_aside(stage, str(error))
        except CheckpointError as error:
            if key not in self._unread:
                log.warning("a copy is not offered: %s; it is tried again", error)
            self._unread.add(key)
            return False
        self._unread.discard(key)
        return stage in checkpoint.stages_held

    def _opened(self, checkpoint: Checkpoint, stage: int) -> StageFile:
        """Open a copy for a request; one that has become useless is reported to the leader."""
        try:
            return checkpoint.state(stage)
        except CorruptError as error:
            checkpoint.set_aside(stage, str(error))
            if self._session is not None and self._loop is not None:
                self._loop.call_soon_threadsafe(self._session.driver.post, CopiesChanged(self._holdings()))
            raise

    def _source(self, stage: int, version: int, root: str) -> StageFile:
        key = (stage, version)
        if key not in self._open:
            for checkpoint in self._checkpoints():
                if checkpoint.version == version and checkpoint.offers(stage):
                    self._open[key] = self._opened(checkpoint, stage)
        found = self._open.get(key)
        if found is None or root not in ("", found.root):
            raise NetworkError(f"version {version} of stage {stage} is not here (any more)")
        return found


def _write_stage(folder: Path, manifest: Manifest, stage: int, version: int, state: StageState) -> str:
    """Write the state of a stage as a copy of it would be, and return its root.

    Raises CheckpointError, NoRoomError and OSError.
    """
    elements = state_tensor_lengths(manifest, stage)
    require_room(f"version {version} of stage {stage}", folder, file_bytes(elements))
    checkpoint = Checkpoint.begin_copy(folder, version, manifest.fingerprint, manifest.stages, ())
    checkpoint.note(whole=False)
    writer = checkpoint.writer(stage, elements)
    try:
        for name, start, stop in chunks(elements):
            part = state.read(name, start, stop)
            if not all_finite(name, bytearray(part)):
                raise CheckpointError(f"stage {stage} has values that are not finite")
            writer.write(name, start, part)
        return checkpoint.add(stage, writer)
    finally:
        writer.abandon()
