"""Copies of stage states on a peer's disk: of other stages than its own, so that no state is in one place only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from swarmflow.compute.checkpoint import Checkpoint, StageFile, readable
from swarmflow.compute.tensorfile import file_bytes
from swarmflow.core.protocol.actions import DropCopies, KeepCopies
from swarmflow.core.protocol.events import CopiesChanged
from swarmflow.core.protocol.types import Holding, Snapshot
from swarmflow.errors import CheckpointError, CorruptError, NetworkError, SwarmflowError
from swarmflow.files import require_room
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.execution.state_transfer import Listing, copy_stage
from swarmflow.runtime.operations.exporting import state_tensor_lengths

log = logging.getLogger("swarmflow")

AGAIN_S = 30.0


class CopyKeeper:
    """The copies of one run that this process keeps, over all of its lives. folder: of the copies; None: it keeps none.

    Version 40 of stage 1 is FOLDER/version-00000040/stage-1.safetensors, as in a trainer's checkpoints. again_s: after
    which the disk is read again where it failed.
    """

    def __init__(self, folder: Path | None, again_s: float = AGAIN_S) -> None:
        self._folder = folder
        self._again_s = again_s
        self._unread: set[tuple[int, int]] = set()  # (stage, version): a copy that the disk failed to read
        self._unlisted = False  # the disk failed to list the copies
        self._manifest: Manifest | None = None
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[tuple[int, int], StageFile] = {}
        self._copying = asyncio.Lock()  # one after the other: copying must leave the link to training

    @property
    def keeps(self) -> bool:
        """Whether this process keeps copies."""
        return self._folder is not None

    async def begin(self, session: Session, manifest: Manifest) -> tuple[Holding, ...]:
        """Begin a life, and return what is on the disk. Corrupt files are logged and set aside."""
        first = self._manifest is None
        self._session, self._manifest, self._loop = session, manifest, asyncio.get_running_loop()
        session.spawn(self._look_again(session), "looking again at copies that could not be read")
        return await asyncio.to_thread(self._holdings, verify=first)

    def keep(self, action: KeepCopies) -> None:
        """Perform KeepCopies."""
        assert self._session is not None, "the run is known"
        self._session.spawn(self._keep(self._session, action), "keeping copies")

    def drop(self, action: DropCopies) -> None:
        """Perform DropCopies."""
        assert self._session is not None, "the run is known"
        self._session.spawn(self._drop(self._session, action), "deleting copies")

    def listing(self, stage: int, version: int) -> Listing:
        """List the tensors of a stage's version. Raises NetworkError when there is no copy of it."""
        return Listing(self._source(stage, version).elements)

    def read(self, stage: int, version: int, tensor: str, start: int, stop: int) -> bytes:
        """Read a part of a tensor. Raises NetworkError."""
        try:
            return self._source(stage, version).read(tensor, start, stop)
        except (KeyError, ValueError, OSError) as error:
            raise NetworkError(f"there is no such part of the state: {error}") from None

    async def _keep(self, session: Session, action: KeepCopies) -> None:
        manifest, failed = self._manifest, ""
        assert manifest is not None, "a peer that keeps copies knows the run"
        assert self._folder is not None, "a peer without a folder is not asked"
        async with self._copying:
            try:
                snapshot = action.snapshot
                checkpoint = await asyncio.to_thread(
                    Checkpoint.begin_copy,
                    self._folder,
                    snapshot.version,
                    manifest.fingerprint,
                    manifest.stages,
                    snapshot.digests,
                )
                self._close(
                    lambda stage, version: version == checkpoint.version and stage not in checkpoint.stages_held
                )
                missing = [stage for stage in action.stages if stage not in checkpoint.stages_held]
                elements = {stage: state_tensor_lengths(manifest, stage) for stage in missing}
                needed = sum(file_bytes(of) for of in elements.values())
                require_room(f"a copy of version {snapshot.version}", checkpoint.path, needed)
                for stage in missing:
                    await copy_stage(
                        session.requests, checkpoint, stage, (action.holder,), elements[stage], snapshot.digests[stage]
                    )
            except (SwarmflowError, OSError) as error:
                failed = str(error)
                log.warning("no copy of version %d is kept here: %s", action.snapshot.version, failed)
            session.driver.post(CopiesChanged(await asyncio.to_thread(self._holdings), failed))

    async def _drop(self, session: Session, action: DropCopies) -> None:
        async with self._copying:
            await asyncio.to_thread(self._delete, action)
            session.driver.post(CopiesChanged(await asyncio.to_thread(self._holdings)))

    def _delete(self, action: DropCopies) -> None:
        self._close(lambda stage, version: not action.oldest <= version <= action.newest)
        for checkpoint in self._checkpoints():
            if not action.oldest <= checkpoint.version <= action.newest:
                checkpoint.remove()

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
        if self._manifest is None or self._folder is None:
            return []
        return readable(self._folder, self._manifest.fingerprint)

    def _holdings(self, verify: bool = False) -> tuple[Holding, ...]:
        found: list[Holding] = []
        try:
            checkpoints = self._checkpoints()
        except CheckpointError as error:
            log.warning("no copy is offered: %s; it is tried again", error)
            self._unlisted = True
            return ()
        verify, self._unlisted = verify or self._unlisted, False
        for checkpoint in checkpoints:
            version = checkpoint.version
            trusted = {stage for stage in checkpoint.stages_held if not verify and (stage, version) not in self._unread}
            stages = [stage for stage in checkpoint.stages_held if stage in trusted or self._right(checkpoint, stage)]
            if stages:
                found.append(Holding(Snapshot(checkpoint.version, checkpoint.digests), tuple(stages)))
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

    def _source(self, stage: int, version: int) -> StageFile:
        key = (stage, version)
        if key not in self._open:
            for checkpoint in self._checkpoints():
                if checkpoint.version == version and stage in checkpoint.stages_held:
                    self._open[key] = self._opened(checkpoint, stage)
                    return self._open[key]
            raise NetworkError(f"version {version} of stage {stage} is not here (any more)")
        return self._open[key]
