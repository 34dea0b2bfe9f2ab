"""Exports a run's newest version, from a trainer's folder or from the run itself."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import msgspec
import uvloop

from swarmflow.compute.checkpoint import Checkpoint, newest_complete
from swarmflow.compute.export import KIND, STAGES_FILE
from swarmflow.core.protocol.types import Member
from swarmflow.decoding import UNDECODABLE
from swarmflow.drafts import draft_of
from swarmflow.errors import CheckpointError, NetworkError
from swarmflow.ownership import check_replaceable
from swarmflow.runtime.execution.state_transfer import first_donor
from swarmflow.runtime.operations.exporting import (
    TOKENIZER_FILE,
    check_base,
    export_checkpoint,
    state_tensor_lengths,
    tokenizer_files,
)
from swarmflow.runtime.operations.folders import checkpoints_folder, kept_manifest
from swarmflow.runtime.operations.logs import set_up_logging
from swarmflow.runtime.operations.visit import visit
from swarmflow.runtime.transport.invite import Invite

T = TypeVar("T")
_SAVE_TIMEOUT_S = 330.0
_TOKENIZER_FILES_MAX = 64


def main(whence: Invite | Path, out: Path, dtype: str | None = None, base: Path | None = None) -> int:
    """Export from a run or from a trainer's folder; the exit code. dtype: None: the run's.

    base: the folder of the model to which the run's adapters are added; None: they are written alone. Raises
    CheckpointError, NetworkError.
    """
    set_up_logging()
    if isinstance(whence, Path):
        version = export_folder(whence, out, dtype, base)
    else:
        version = uvloop.run(export_run(whence, out, dtype, base))
    print(f"version {version} is in {out}")
    if (out / STAGES_FILE).is_file():
        print(f"transformers cannot load it: see {STAGES_FILE} there, and docs/run-toml.md, Learnt boundaries")
    return 0


def export_folder(folder: Path, out: Path, dtype: str | None = None, base: Path | None = None) -> int:
    """Export the newest complete version of a trainer's folder; its number."""
    path = folder / "run.json"
    manifest = kept_manifest(folder)
    if manifest is None and not path.is_file():
        raise CheckpointError(f"{folder} is not a trainer's state folder: it has no run.json")
    if manifest is None:
        raise CheckpointError(f"{path} is corrupt: start its trainer, or give another one's --state-dir")
    check_replaceable(out, KIND, manifest.run_id)  # a checkpoint takes its time to be verified
    if base is not None:
        check_base(manifest, base)
    checkpoint = newest_complete(checkpoints_folder(folder, manifest), manifest.fingerprint)
    if checkpoint is None:
        raise CheckpointError(f"{folder} holds no complete version yet")
    export_checkpoint(manifest, checkpoint, out, lambda to: _copy_files(folder / "tokenizer", to), dtype, base)
    return checkpoint.version


async def export_run(invite: Invite, out: Path, dtype: str | None = None, base: Path | None = None) -> int:
    """Ask the leader to bring the newest version to its disk, copy it stage by stage, and export it; its number."""
    check_replaceable(out, KIND, invite.run_id)
    with ExitStack() as stack:
        scratch = _scratch(stack, out, invite.run_id)  # before anybody is asked for anything
        async with visit(invite) as (session, found):
            if base is not None:
                await asyncio.to_thread(check_base, found.manifest, base)
            saved = await session.requests.ask(found.leader, "save", timeout_s=_SAVE_TIMEOUT_S, of_trainer=True)
            version = _decoded(saved, lambda data: msgspec.json.decode(data, type=int))
            manifest, leader = found.manifest, Member(found.leader, -1)
            checkpoint = Checkpoint.begin(scratch, version, manifest.fingerprint, manifest.stages)
            for stage in range(manifest.stages):
                elements = state_tensor_lengths(manifest, stage)
                writer = checkpoint.writer(stage, elements)
                try:
                    listing = await first_donor(session.requests, [leader], stage, version, elements, writer.write)
                    if set(listing.tensors) != set(elements):
                        raise NetworkError("the run is at version 0: export the folder that it began from")
                    checkpoint.add(stage, writer)
                finally:
                    writer.abandon()
            answer = await session.requests.ask(found.leader, "tokenizer")
            files = _decoded(answer, lambda data: msgspec.msgpack.decode(data, type=dict[str, bytes]))
            export_checkpoint(manifest, checkpoint, out, lambda to: write_tokenizer(files, to), dtype, base)
            return version


def _decoded(answer: Sequence[bytes | memoryview], decode: Callable[[bytes | memoryview], T]) -> T:
    try:
        return decode(answer[0])
    except (*UNDECODABLE, IndexError) as error:
        raise NetworkError(f"the leader sent what does not decode: {error}") from error


def _scratch(stack: ExitStack, out: Path, run: str) -> Path:
    """A folder beside `out` for what is copied. Raises CheckpointError."""
    try:
        return stack.enter_context(draft_of(Path(os.path.realpath(out)), run))
    except OSError as error:
        raise CheckpointError(f"--out {out} cannot be written: {error.strerror or error}") from error


def _copy_files(source: Path, to: Path) -> None:
    for name, path in tokenizer_files(source).items():
        (to / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, to / name)


def write_tokenizer(files: dict[str, bytes], to: Path) -> None:
    """Write the files that a leader has sent. Raises NetworkError where a tokenizer has no such names."""
    if len(files) > _TOKENIZER_FILES_MAX or not all(map(TOKENIZER_FILE.fullmatch, files)):
        raise NetworkError("the leader sent a tokenizer with impossible file names")
    for name, data in files.items():
        (to / name).parent.mkdir(exist_ok=True)
        (to / name).write_bytes(data)
