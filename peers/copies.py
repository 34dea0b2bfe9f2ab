"""Copies of stage states on a peer's disk: of other stages than its own, so that no state lies in one place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from swarmflow.compute.checkpoint import Generation, StageFile, readable
from swarmflow.compute.tensorfile import file_bytes
from swarmflow.core.actions import DropCopies, KeepCopies
from swarmflow.core.events import CopiesChanged
from swarmflow.core.types import Holding, Snapshot
from swarmflow.errors import CheckpointError, CorruptError, NetworkError, SwarmflowError
from swarmflow.files import require_room
from swarmflow.manifest import Manifest
from swarmflow.runtime.exporting import state_elements
from swarmflow.runtime.session import Session
from swarmflow.runtime.state_transfer import Listing, copy_stage

log = logging.getLogger("swarmflow")

AGAIN_S = 30.0


class CopyKeeper:
    """The copies of one run that this process keeps, over all of its lives. folder: for them; None: it keeps none.

    Version 40 of stage 1 is FOLDER/version-00000040/stage-1.safetensors, as in a trainer's checkpoints. again_s: after
    which what the disk did not give is asked for again.
    """

    def __init__(self, folder: Path | None, again_s: float = AGAIN_S) -> None:
        self._folder = folder
        self._again_s = again_s
        self._unread: set[tuple[int, int]] = set()  # (stage, version): intact or not, the disk did not give it
        self._unlisted = False  # nor what there is
        self._manifest: Manifest | None = None
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[tuple[int, int], StageFile] = {}
        self._copying = asyncio.Lock()  # one Keep after the other: copying must not take the link from training

    @property
    def keeps(self) -> bool:
        """Whether this process keeps copies."""
        return self._folder is not None

    async def begin(self, session: Session, manifest: Manifest) -> tuple[Holding, ...]:
        """A life begins: what lies on the disk. What is corrupt is told of and set aside."""
        first = self._manifest is None
        self._session, self._manifest, self._loop = session, manifest, asyncio.get_running_loop()
        session.spawn(self._look_again(session), "looking again at copies that could not be read")
        return await asyncio.to_thread(self._holdings, verify=first)

    def keep(self, action: KeepCopies) -> None:
        """Do KeepCopies."""
        assert self._session is not None, "the run is known"
        self._session.spawn(self._keep(self._session, action), "keeping copies")

    def drop(self, action: DropCopies) -> None:
        """Do DropCopies."""
        assert self._session is not None, "the run is known"
        self._session.spawn(self._drop(self._session, action), "deleting copies")

    def listing(self, stage: int, version: int) -> Listing:
        """What is here of a stage's version. Raises NetworkError when nothing is."""
        return Listing(self._source(stage, version).elements)

    def read(self, stage: int, version: int, tensor: str, start: int, stop: int) -> bytes:
        """A part of it. Raises NetworkError."""
        try:
            return self._source(stage, version).read(tensor, start, stop)
        except (KeyError, ValueError, OSError) as error:
            raise NetworkError(f"there is no such part of the state: {error}") from None

    async def _keep(self, session: Session, action: KeepCopies) -> None:
        manifest, failed = self._manifest, ""
        assert manifest is not None, "who keeps copies knows the run"
        assert self._folder is not None, "who has no folder is not asked"
        async with self._copying:
            try:
                snapshot = action.snapshot
                generation = await asyncio.to_thread(
                    Generation.begin_copy,
                    self._folder,
                    snapshot.version,
                    manifest.fingerprint,
                    manifest.stages,
                    snapshot.digests,
                )
                self._close(lambda stage, version: version == generation.version and stage not in generation.held)
                missing = [stage for stage in action.stages if stage not in generation.held]
                elements = {stage: state_elements(manifest, stage) for stage in missing}
                needed = sum(file_bytes(of) for of in elements.values())
                require_room(f"a copy of version {snapshot.version}", generation.path, needed)
                for stage in missing:
                    await copy_stage(
                        session.requests, generation, stage, (action.holder,), elements[stage], snapshot.digests[stage]
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
        for generation in self._generations():
            if not action.oldest <= generation.version <= action.newest:
                generation.remove()

    def _close(self, of_no_use: Callable[[int, int], bool]) -> None:
        """Close the files of these (stage, version): what lies under their names is, or will be, something else."""
        for key in list(self._open):  # other threads open more meanwhile, for those who ask
            if of_no_use(*key):
                self._open.pop(key).close()

    async def _look_again(self, session: Session) -> None:
        while True:
            await asyncio.sleep(self._again_s)
            if self._unread or self._unlisted:
                session.driver.post(CopiesChanged(await asyncio.to_thread(self._holdings)))

    def _generations(self) -> list[Generation]:
        if self._manifest is None or self._folder is None:
            return []
        return readable(self._folder, self._manifest.fingerprint)

    def _holdings(self, verify: bool = False) -> tuple[Holding, ...]:
        found: list[Holding] = []
        try:
            generations = self._generations()
        except CheckpointError as error:
            log.warning("no copy is offered: %s; it is tried again", error)
            self._unlisted = True
            return ()
        verify, self._unlisted = verify or self._unlisted, False
        for generation in generations:
            version = generation.version
            trusted = {stage for stage in generation.held if not verify and (stage, version) not in self._unread}
            stages = [stage for stage in generation.held if stage in trusted or self._right(generation, stage)]
            if stages:
                found.append(Holding(Snapshot(generation.version, generation.digests), tuple(stages)))
        return tuple(found)

    def _right(self, generation: Generation, stage: int) -> bool:
        key = (stage, generation.version)
        try:
            generation.state(stage).close()
        except CorruptError as error:
            generation.set_aside(stage, str(error))
        except CheckpointError as error:
            if key not in self._unread:
                log.warning("a copy is not offered: %s; it is tried again", error)
            self._unread.add(key)
            return False
        self._unread.discard(key)
        return stage in generation.held

    def _opened(self, generation: Generation, stage: int) -> StageFile:
        """A copy for who asks for it; the leader is told of one that is of no use any more."""
        try:
            return generation.state(stage)
        except CorruptError as error:
            generation.set_aside(stage, str(error))
            if self._session is not None and self._loop is not None:
                self._loop.call_soon_threadsafe(self._session.driver.post, CopiesChanged(self._holdings()))
            raise

    def _source(self, stage: int, version: int) -> StageFile:
        key = (stage, version)
        if key not in self._open:
            for generation in self._generations():
                if generation.version == version and stage in generation.held:
                    self._open[key] = self._opened(generation, stage)
                    return self._open[key]
            raise NetworkError(f"version {version} of stage {stage} is not here (any more)")
        return self._open[key]
