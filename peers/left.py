"""A stage's state in a peer's folder: from a life that left at once as its only holder, to the next life."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from peers.kept import KeptStage
from swarmflow.compute.checkpoint import Checkpoint, remove_all_but, version_folder
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.stage_state import StageState, chunks
from swarmflow.compute.state_root import tensor_name
from swarmflow.compute.tensorfile import file_bytes
from swarmflow.core.protocol.messages import Held
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import CheckpointError, CorruptError
from swarmflow.files import free_bytes, read_sealed, require_room, set_aside, write_sealed
from swarmflow.runtime.execution.served import Served

log = logging.getLogger("swarmflow")


@dataclass(frozen=True)
class _Note:
    """The content of the file `held`."""

    held: Held
    run: str  # its fingerprint
    capacity: int  # microbatches that fit
    exponent: int = EXPONENT  # of an int64 gradient


class LeftState:
    """A state in a folder: FOLDER/version-00000040/stage-1.safetensors, and FOLDER/held, which describes it.

    A gradient that waits for its commit is stored beside the parameters and the optimizer's state (`Sums.stored`).
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder  # None: nothing is kept
        self._note: _Note | None = None
        self._lock = threading.Lock()  # a process that leaves at once writes while an earlier state is removed

    @property
    def keeps(self) -> bool:
        """Whether there is a folder."""
        return self._folder is not None

    @property
    def held(self) -> Held | None:
        """The state that was found or written there."""
        return self._note.held if self._note is not None else None

    def find(self, run: str) -> Held | None:
        """Return the state that an earlier life of this run has left. It is read whole, and set aside if corrupt."""
        if self._folder is None:
            return None
        with self._lock:
            self._note = None
            try:
                note = self._named()
                self._sweep(note)
                if note is not None and note.run == run:
                    self._checkpoint(note).state(note.held.stage).close()
                    self._note = note
            except (OSError, CheckpointError) as error:
                kept = self._set_aside() if isinstance(error, CorruptError) else "; it stays for the next start"
                log.warning("what this peer has left of a stage cannot be used: %s%s", error, kept)
            return self.held

    def write(self, kept: KeptStage) -> None:
        """Write the state of a stage here, unless it is here. Raises CheckpointError, NoRoomError and OSError."""
        assert self._folder is not None, "a peer without a folder is not asked"
        with self._lock:
            if self._note is not None and (self._note.held, self._note.run) == (kept.held, kept.run):
                return
            rounding = kept.served.runner(kept.served.version).stage.rounding
            exponent = EXPONENT if rounding is None else rounding.exponent
            try:
                self._write(_Note(kept.held, kept.run, kept.capacity, exponent), kept.served)
            finally:
                with suppress(OSError):  # else useless files are removed before the next try
                    self._sweep(self._named())

    def _write(self, note: _Note, served: Served) -> None:
        """Replace the earlier state once the new one is whole, or before that where there is no room for both."""
        assert self._folder is not None, "a peer without a folder is not asked"
        held, state = note.held, _state(served, note.held.version, with_gradient=bool(note.held.upcoming))
        elements = state.elements()
        what, needed = f"stage {held.stage} at version {held.version}", file_bytes(elements)
        earlier = None
        with suppress(OSError):  # a disk that cannot be read now may still be written to
            earlier = self._named()
            self._sweep(earlier)
        if earlier is not None and (earlier.held.version == held.version or free_bytes(self._folder) < needed):
            self._remove()
        require_room(what, self._folder, needed)
        checkpoint = Checkpoint.begin_copy(self._folder, held.version, note.run, served.stage.layout.stages, ())
        writer = checkpoint.writer(held.stage, elements)
        try:
            for name, start, stop in chunks(elements):
                writer.write(name, start, state.read(name, start, stop))
            checkpoint.add(held.stage, writer)
        finally:
            writer.abandon()
        write_sealed(self._folder / "held", msgspec.json.encode(note))
        self._note = note

    def fill(self, served: Served) -> KeptStage:
        """Set a stage, built anew, to the state that is here. Raises CheckpointError."""
        note = self._note
        if note is None:
            raise CheckpointError("no state of a stage was left here")
        if note.held.upcoming:
            for name, group in served.groups(note.held.version).items():
                served.reduced[name] = group.sums.empty().storable()
        state = _state(served, note.held.version, with_gradient=bool(note.held.upcoming))
        with self._lock, self._checkpoint(note).state(note.held.stage) as file:
            if file.elements != state.elements():
                raise CheckpointError(f"{file.path} does not hold stage {note.held.stage}")
            for name, start, stop in chunks(file.elements):
                state.write(name, start, memoryview(bytearray(file.read(name, start, stop))))
        served.version = note.held.version
        rounding = served.runner(served.version).stage.rounding
        if rounding is not None:
            rounding.exponent = note.exponent
        for runner in served.runners:
            runner.weights_written()
        return KeptStage(note.held, served, note.run, note.capacity)

    def remove(self) -> None:
        """Delete the state, which no process can need any more. A disk that refuses is logged."""
        if self._folder is None:
            return
        with self._lock:
            try:
                self._remove()
            except OSError as error:
                log.warning("%s cannot be removed: %s", self._folder, error)

    def _remove(self) -> None:
        assert self._folder is not None, "there may be something in it"
        self._note = None
        (self._folder / "held").unlink(missing_ok=True)
        self._sweep(None)

    def _named(self) -> _Note | None:
        """Return the content of `held`, of any run. None: it is missing or useless. Raises OSError."""
        assert self._folder is not None, "there may be something in it"
        content = read_sealed(self._folder / "held")
        try:
            return msgspec.json.decode(content, type=_Note) if content is not None else None
        except UNDECODABLE as error:
            log.warning("what this peer has left of a stage is of no use: %s%s", error, self._set_aside())
            return None

    def _sweep(self, note: _Note | None) -> None:
        """Delete other files: a killed process, or a full disk, has left them half-written."""
        assert self._folder is not None, "there may be something in it"
        remove_all_but(self._folder, () if note is None else (note.held.version,))

    def _checkpoint(self, note: _Note) -> Checkpoint:
        assert self._folder is not None, "there is something in it"
        return Checkpoint.open(version_folder(self._folder, note.held.version))

    def _set_aside(self) -> str:
        assert self._folder is not None, "there is something in it"
        try:
            return f"; it is kept in {set_aside(self._folder).name}"
        except OSError as error:
            return f"; it cannot be set aside: {error.strerror}"


def _state(served: Served, version: int, with_gradient: bool) -> StageState:
    """Return all tensors to store, as fp32."""
    state, groups = served.state_of(version), served.groups(version)
    if not with_gradient:
        return state
    sums = {name: served.reduced.get(name, group.sums).storable().stored() for name, group in groups.items()}
    return state.beside({tensor_name(n, part): tensor for n, parts in sums.items() for part, tensor in parts.items()})
