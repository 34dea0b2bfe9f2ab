"""Copies committed versions from the peers to disk, exports them, and gives them to peers that need them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from swarmflow.compute.checkpoint import Checkpoint, prune, readable, remove_unfinished, superseded
from swarmflow.compute.export import KIND
from swarmflow.compute.layout import StageLayout, layout_in_run
from swarmflow.compute.stage_file import StageFile
from swarmflow.compute.tensorfile import file_bytes
from swarmflow.compute.weights import LayoutReader
from swarmflow.config import RunSection
from swarmflow.core.protocol.actions import WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, DiskChanged, DiskSpace, Progressed
from swarmflow.errors import CorruptError, NetworkError, NoRoomError, SwarmflowError
from swarmflow.files import readable_size, require_room
from swarmflow.manifest import Manifest
from swarmflow.ownership import is_intact
from swarmflow.runtime.execution.session import Session, log
from swarmflow.runtime.execution.state_transfer import Listing, copy_stage, serve_state
from swarmflow.runtime.operations.exporting import content_id, export_checkpoint, state_tensor_lengths
from trainers.exports import exports_bytes, final_folder, prune_exports, step_folder
from trainers.found import parts
from trainers.state import StateFolder
from trainers.training_data import TrainingData

COPYING_S = 600.0  # between two requests of a process that copies a version: it may have to hash a whole stage
SPARED_MAX = 2  # earlier versions that stay for those who copy them


class Checkpoints:
    """The versions that one trainer holds."""

    def __init__(
        self,
        manifest: Manifest,
        folder: StateFolder,
        run: RunSection,
        weights: Path | None,
        corpus: TrainingData,
        every: int,
        copying_s: float = COPYING_S,
    ) -> None:
        self._manifest = manifest
        self._folder = folder
        self._output = run.output
        self._keep = run.keep_exports
        self._weights = weights  # the folder of version 0, if the run began from one
        self._corpus = corpus
        self._every = every  # steps between two exports; 0: only the last version is exported
        self._newest: Checkpoint | None = None
        self._writing = asyncio.Lock()  # of two copies of a version, each would name only its own files
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: dict[tuple[int, int], StageFile | LayoutReader] = {}
        self._asked_s: dict[int, float] = {}  # when a part of a version on disk was last asked for
        self._copying_s = copying_s  # after that, nobody copies the version any more

    def begin(self, session: Session, checkpoint: Checkpoint | None) -> None:
        """Begin a life: serve the versions here to peers. checkpoint: the newest version on disk."""
        self._session, self._loop, self._newest = session, asyncio.get_running_loop(), checkpoint
        serve_state(session.requests, self._listing, self._read)

    def look(self) -> None:
        """Check that the newest version is still on the disk. To be called regularly."""
        newest = self._newest
        if newest is None or self._writing.locked() or newest.complete:
            return
        self._changed(f"version {newest.version} is not in {newest.path} any more")

    def write(self, session: Session, action: WriteCheckpoint) -> None:
        """Perform WriteCheckpoint."""
        task = session.spawn(self._write(session, action), "writing a checkpoint")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abandon(self) -> None:
        """Stop a running write, without a report."""
        for task in self._tasks:
            task.cancel()

    async def _write(self, session: Session, action: WriteCheckpoint) -> None:
        try:
            async with self._writing:
                newest = self._newest
                held = newest is not None and newest.version == action.version and newest.complete
                if newest is None or not held or (action.roots and newest.roots != action.roots):
                    newest = await self._copy_or_make_room(session, action)
                session.driver.post(Progressed("save", version=action.version))
                self._newest = newest
                self._folder.keep_newest_seen(newest.version)
                lacks = await asyncio.to_thread(self._after, newest, action)
        except (SwarmflowError, OSError) as error:
            session.driver.post(self._failed(action, error))
        else:
            session.driver.post(
                CheckpointWritten(
                    action.version, True, lacks, roots=newest.roots, exported=not lacks, number=action.number
                )
            )

    def _failed(self, action: WriteCheckpoint, error: SwarmflowError | OSError) -> CheckpointWritten:
        """Return the reason of a failed write, and where the disk is full what could be freed."""
        if not isinstance(error, NoRoomError):
            return CheckpointWritten(action.version, False, str(error), number=action.number)
        spare = exports_bytes(self._output)
        hint = f" (step-N in {self._output} take {readable_size(spare)})" if spare else ""
        space = DiskSpace(error.path, error.needed_bytes, error.free_bytes)
        return CheckpointWritten(action.version, False, f"{error}{hint}", space=space, number=action.number)

    def _changed(self, reason: str) -> None:
        """Report the files that are left after a loss. On the event loop."""
        run = self._manifest.fingerprint
        whole = [found for found in readable(self._folder.checkpoints, run) if found.complete and found.roots]
        self._newest = newest = whole[0] if whole else None
        version = newest.version if newest is not None else 0
        for key in list(self._open):
            if key[1] > version:
                self._open.pop(key).close()
        left = parts(self._folder.checkpoints, run, version)
        roots = newest.roots if newest is not None else ()
        self._session.driver.post(DiskChanged(version, reason, roots, left))

    async def _copy(self, session: Session, action: WriteCheckpoint) -> Checkpoint:
        """Copy all stages in parallel, each from the first holder that sends it whole."""
        manifest = self._manifest
        await asyncio.to_thread(remove_unfinished, self._folder.checkpoints, manifest.fingerprint, action.version)
        checkpoint = await asyncio.to_thread(
            Checkpoint.begin_copy,
            self._folder.checkpoints,
            action.version,
            manifest.fingerprint,
            manifest.stages,
            action.roots,
        )
        missing = [stage for stage in range(manifest.stages) if stage not in checkpoint.stages_held]
        needed = await asyncio.to_thread(lambda: sum(file_bytes(self._elements(stage)) for stage in missing))
        require_room(f"a copy of version {action.version}", checkpoint.path, needed)
        jobs = [
            copy_stage(
                session.requests,
                checkpoint,
                stage,
                action.roster.stages[stage],
                self._elements(stage),
                action.roots[stage] if action.roots else None,
                lambda *_: session.driver.post(Progressed("save")),
            )
            for stage in missing
        ]
        for outcome in await asyncio.gather(*jobs, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return checkpoint

    async def _copy_or_make_room(self, session: Session, action: WriteCheckpoint) -> Checkpoint:
        """Copy a version; where the disk is full, delete what stays for others: the run must not wait for these."""
        try:
            return await self._copy(session, action)
        except NoRoomError:
            with suppress(SwarmflowError, OSError):
                await asyncio.to_thread(self._prune, {action.spare})
            raise

    def _after(self, checkpoint: Checkpoint, action: WriteCheckpoint) -> str:
        """Return why the last version is not exported; empty: it is, or need not be."""
        lacks = ""
        if action.last:
            try:
                self._export(checkpoint, final_folder(self._output), action.spare)
                self._folder.forget_peers()
            except (SwarmflowError, OSError) as error:
                lacks = str(error)
        if self._every and checkpoint.version % self._every == 0 and checkpoint.version > 0:
            self._export_step(checkpoint, action.spare)
        # It may not be among the last ones: later ones of a history that was given up lie there, too.
        self._prune({action.spare, checkpoint.version, *self._copied()})
        return lacks

    def _copied(self) -> list[int]:
        """Return the versions before the last ones that stay as processes copy them: those asked for last."""
        since_s = time.monotonic() - self._copying_s
        self._asked_s = {version: asked_s for version, asked_s in self._asked_s.copy().items() if asked_s > since_s}
        former = {each.version for each in superseded(self._folder.checkpoints, self._manifest.fingerprint)}
        return sorted(former & set(self._asked_s), key=self._asked_s.__getitem__)[-SPARED_MAX:]

    def _prune(self, spare: Collection[int]) -> None:
        """Delete versions before the last ones but these, and close the files of all but these and the newest."""
        stays = {*spare, *([] if self._newest is None else [self._newest.version])}
        for key in list(self._open):  # other threads may open more meanwhile, for requests
            if key[1] not in stays:
                self._open.pop(key).close()
        prune(self._folder.checkpoints, self._manifest.fingerprint, spare=spare)

    def _export_step(self, checkpoint: Checkpoint, spare: int) -> None:
        try:
            self._export(checkpoint, step_folder(self._output, checkpoint.version), spare)
            if self._keep:
                prune_exports(self._output, self._manifest.run_id, self._keep)
        except (SwarmflowError, OSError) as error:  # the version is on disk: `swarmflow export` can still write it
            log.warning("version %d is not exported: %s", checkpoint.version, error)

    def _export(self, checkpoint: Checkpoint, out: Path, spare: int) -> None:
        """Write a version as a Hugging Face folder, unless it is there.

        Where that fails, once more without the versions that stay for those who copy them, but `spare`. Raises
        CheckpointError, ForeignFileError.
        """
        if is_intact(out, KIND, self._manifest.run_id, content_id(checkpoint)):
            return  # another trainer of this output has written it
        try:
            export_checkpoint(self._manifest, checkpoint, out, self._corpus.save_tokenizer)
        except (SwarmflowError, OSError):
            if not set(self._copied()) - {spare}:
                raise
            self._prune({spare})
            export_checkpoint(self._manifest, checkpoint, out, self._corpus.save_tokenizer)
        log.info("version %d is exported to %s", checkpoint.version, out)

    # --- what others ask for ------------------------------------------------------------------------------------------

    def _listing(self, stage: int, version: int, root: str) -> Listing:
        if not 0 <= stage < self._manifest.stages:
            raise NetworkError(f"there is no stage {stage}")
        elements = self._elements(stage)
        if isinstance(self._source(stage, version, root), LayoutReader):
            return Listing({name: count for name, count in elements.items() if name.endswith(".params")})
        return Listing(elements)

    def _read(self, stage: int, version: int, root: str, tensor: str, start: int, stop: int) -> bytes:
        source = self._source(stage, version, root)
        try:
            if isinstance(source, LayoutReader):
                return source.read(tensor.removesuffix(".params"), start, stop)
            return source.read(tensor, start, stop)
        except (KeyError, ValueError) as error:
            raise NetworkError(f"there is no such part of the state: {error}") from None

    def _source(self, stage: int, version: int, root: str) -> StageFile | LayoutReader:
        source = self._open.get((stage, version))
        if source is None:
            if version == 0 and self._weights is not None:
                source = LayoutReader(self._layout(stage), self._weights, self._manifest.seed)
            else:
                source = self._state(stage, version)
            self._open[stage, version] = source
        if isinstance(source, StageFile):
            self._asked_s[version] = time.monotonic()
        if root and (isinstance(source, LayoutReader) or source.root != root):
            raise NetworkError(f"version {version} of stage {stage} is another one on this trainer's disk")
        return source

    def _state(self, stage: int, version: int) -> StageFile:
        """Open a stage of a version on disk: the newest, or one that a peer may still be copying."""
        newest = self._newest
        found = [newest] if newest is not None and newest.version == version else []
        found += readable(self._folder.checkpoints, self._manifest.fingerprint)
        for checkpoint in found:
            if checkpoint.version != version or stage not in checkpoint.stages_held:
                continue
            try:
                return checkpoint.state(stage)
            except CorruptError as error:
                checkpoint.set_aside(stage, str(error))
                self._loop.call_soon_threadsafe(self._changed, str(error))
                raise
        raise NetworkError(f"stage {stage} of version {version} is not on this trainer's disk")

    def _layout(self, stage: int) -> StageLayout:
        return layout_in_run(self._manifest, stage)

    def _elements(self, stage: int) -> dict[str, int]:
        return state_tensor_lengths(self._manifest, stage)
