"""A stage's state in a peer's folder: from a life that left at once, while nobody else had it, to the next one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from peers.kept import KeptStage
from swarmflow.compute.checkpoint import Generation, remove_all_but, tensor_name, version_folder
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.stage_state import StageState
from swarmflow.compute.tensorfile import file_bytes
from swarmflow.core.messages import Held
from swarmflow.errors import CheckpointError, CorruptError
from swarmflow.files import free_bytes, read_sealed, require_room, set_aside, write_sealed
from swarmflow.runtime.served import Served

log = logging.getLogger("swarmflow")

CHUNK_ELEMENTS = 1 << 20
_REDUCED = "reduced"  # a group's gradient, beside its parameters and optimizer state


@dataclass(frozen=True)
class _Note:
    """What the file `held` says. run: fingerprint. capacity: microbatches that fit. exponent: of an int64 gradient."""

    held: Held
    run: str
    capacity: int
    exponent: int = EXPONENT


class LeftState:
    """FOLDER/version-00000040/stage-1.safetensors, and FOLDER/held, which says what it is. folder: None: there is none.

    An int64 gradient is stored as the fp32 numbers that have the same bytes.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._note: _Note | None = None
        self._lock = threading.Lock()  # whoever is told to leave at once writes while an earlier one is removed

    @property
    def keeps(self) -> bool:
        """Whether there is a folder."""
        return self._folder is not None

    @property
    def held(self) -> Held | None:
        """What was found or written there."""
        return self._note.held if self._note is not None else None

    def find(self, run: str) -> Held | None:
        """What an earlier life of this run has left. The file is read whole; one that is corrupt is set aside."""
        if self._folder is None:
            return None
        with self._lock:
            self._note = None
            try:
                note = self._named()
                self._sweep(note)
                if note is not None and note.run == run:
                    self._generation(note).state(note.held.stage).close()
                    self._note = note
            except (OSError, CheckpointError) as error:
                kept = self._set_aside() if isinstance(error, CorruptError) else "; it stays for the next start"
                log.warning("what this peer has left of a stage cannot be used: %s%s", error, kept)
            return self.held

    def write(self, kept: KeptStage) -> None:
        """Bring the state of a stage here, unless it lies here. Raises CheckpointError, NoRoomError and OSError."""
        assert self._folder is not None, "who has no folder is not asked"
        with self._lock:
            if self._note is not None and (self._note.held, self._note.run) == (kept.held, kept.run):
                return
            fixed = kept.served.stage.fixed
            exponent = EXPONENT if fixed is None else fixed.exponent
            try:
                self._write(_Note(kept.held, kept.run, kept.capacity, exponent), kept.served)
            finally:
                with suppress(OSError):  # else what is of no use goes before the next time
                    self._sweep(self._named())

    def _write(self, note: _Note, served: Served) -> None:
        """What lies here from before goes when the new is whole: before, where there is no room for both."""
        assert self._folder is not None, "who has no folder is not asked"
        held, state = note.held, _state(served, with_gradient=bool(note.held.upcoming))
        elements = state.elements()
        what, needed = f"stage {held.stage} at version {held.version}", file_bytes(elements)
        earlier = None
        with suppress(OSError):  # a disk that does not say now what lies here may take what is to come
            earlier = self._named()
            self._sweep(earlier)
        if earlier is not None and (earlier.held.version == held.version or free_bytes(self._folder) < needed):
            self._remove()
        require_room(what, self._folder, needed)
        generation = Generation.begin_copy(self._folder, held.version, note.run, served.stage.layout.stages, ())
        writer = generation.writer(held.stage, elements)
        try:
            for name, start, stop in _chunks(elements):
                writer.write(name, start, state.read(name, start, stop))
            generation.add(held.stage, writer)
        finally:
            writer.abandon()
        write_sealed(self._folder / "held", msgspec.json.encode(note))
        self._note = note

    def fill(self, served: Served) -> KeptStage:
        """Set a stage, built anew, to what lies here. Raises CheckpointError."""
        note = self._note
        if note is None:
            raise CheckpointError("no state of a stage was left here")
        if note.held.upcoming:
            for name, group in served.stage.groups.items():
                served.reduced[name] = torch.empty_like(group.summed)
        state = _state(served, with_gradient=bool(note.held.upcoming))
        with self._lock, self._generation(note).state(note.held.stage) as file:
            if file.elements != state.elements():
                raise CheckpointError(f"{file.path} does not hold stage {note.held.stage}")
            for name, start, stop in _chunks(file.elements):
                state.write(name, start, memoryview(bytearray(file.read(name, start, stop))))
        if served.stage.fixed is not None:
            served.stage.fixed.exponent = note.exponent
        served.runner.weights_written()
        served.version = note.held.version
        return KeptStage(note.held, served, note.run, note.capacity)

    def remove(self) -> None:
        """Delete it: nobody can need it any more. A disk that refuses is told of."""
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
        """What `held` says, of whichever run. None: it is not there, or of no use. Raises OSError."""
        assert self._folder is not None, "there may be something in it"
        content = read_sealed(self._folder / "held")
        try:
            return msgspec.json.decode(content, type=_Note) if content is not None else None
        except msgspec.DecodeError as error:
            log.warning("what this peer has left of a stage is of no use: %s%s", error, self._set_aside())
            return None

    def _sweep(self, note: _Note | None) -> None:
        """Delete what else lies here: a process that was killed, or a full disk, has left it half-written."""
        assert self._folder is not None, "there may be something in it"
        remove_all_but(self._folder, () if note is None else (note.held.version,))

    def _generation(self, note: _Note) -> Generation:
        assert self._folder is not None, "there is something in it"
        return Generation.open(version_folder(self._folder, note.held.version))

    def _set_aside(self) -> str:
        assert self._folder is not None, "there is something in it"
        try:
            return f"; it is kept in {set_aside(self._folder).name}"
        except OSError as error:
            return f"; it cannot be set aside: {error.strerror}"


def _state(served: Served, with_gradient: bool) -> StageState:
    """All that is to be stored, as fp32."""
    groups = served.stage.groups
    if not with_gradient:
        return served.state
    sums = {tensor_name(name, _REDUCED): served.reduced.get(name, group.summed) for name, group in groups.items()}
    return StageState(groups, {name: gradient.detach().view(torch.float32) for name, gradient in sums.items()})


def _chunks(elements: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Tensor by tensor, ranges that memory takes without notice."""
    for name, count in elements.items():
        for start in range(0, count, CHUNK_ELEMENTS):
            yield name, start, min(start + CHUNK_ELEMENTS, count)
