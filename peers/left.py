"""A stage's state in a peer's folder: from a life that left at once, while nobody else had it, to the next one."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from peers.kept import Kept
from swarmflow.compute.checkpoint import Generation, tensor_name
from swarmflow.compute.exact import EXPONENT
from swarmflow.compute.flat import memory_of
from swarmflow.compute.tensorfile import file_bytes
from swarmflow.core.messages import Held
from swarmflow.errors import CheckpointError, CorruptError
from swarmflow.files import read_sealed, require_room, set_aside, write_sealed
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
        self._note = None
        if self._folder is None:
            return None
        try:
            content = read_sealed(self._folder / "held")
            note = msgspec.json.decode(content, type=_Note) if content is not None else None
            if note is not None and note.run == run:
                generation = self._generation(note)
                generation.state(note.held.stage).close()
                self._note = note
        except (OSError, CheckpointError) as error:
            kept = self._set_aside() if isinstance(error, CorruptError) else "; it stays for the next start"
            log.warning("what this peer has left of a stage cannot be used: %s%s", error, kept)
        except msgspec.DecodeError as error:
            log.warning("what this peer has left of a stage is of no use: %s%s", error, self._set_aside())
        return self.held

    def write(self, kept: Kept) -> None:
        """Bring the state of a stage here. Raises CheckpointError, NoRoomError and OSError."""
        assert self._folder is not None, "who has no folder is not asked"
        held, served = kept.held, kept.served
        (self._folder / "held").unlink(missing_ok=True)  # of whatever lies there until all is written
        generation = Generation.begin_copy(self._folder, held.version, kept.run, served.stage.layout.stages, ())
        tensors = _tensors(served, with_gradient=bool(held.upcoming))
        elements = {name: tensor.numel() for name, tensor in tensors.items()}
        require_room(f"stage {held.stage} at version {held.version}", self._folder, file_bytes(elements))
        writer = generation.writer(held.stage, elements)
        try:
            for name, tensor in tensors.items():
                for start in range(0, tensor.numel(), CHUNK_ELEMENTS):
                    writer.write(name, start, memory_of(tensor[start : start + CHUNK_ELEMENTS].cpu()))
            generation.add(held.stage, writer)
        finally:
            writer.abandon()
        fixed = served.stage.fixed
        self._note = _Note(held, kept.run, kept.capacity, EXPONENT if fixed is None else fixed.exponent)
        write_sealed(self._folder / "held", msgspec.json.encode(self._note))

    def fill(self, served: Served) -> Kept:
        """Set a stage, built anew, to what lies here. Raises CheckpointError."""
        note = self._note
        if note is None:
            raise CheckpointError("no state of a stage was left here")
        if note.held.upcoming:
            for name, group in served.stage.groups.items():
                served.reduced[name] = torch.empty_like(group.summed)
        tensors = _tensors(served, with_gradient=bool(note.held.upcoming))
        with self._generation(note).state(note.held.stage) as state:
            if state.elements != {name: tensor.numel() for name, tensor in tensors.items()}:
                raise CheckpointError(f"{state.path} does not hold stage {note.held.stage}")
            for name, tensor in tensors.items():
                for start in range(0, tensor.numel(), CHUNK_ELEMENTS):
                    stop = min(start + CHUNK_ELEMENTS, tensor.numel())
                    data = torch.frombuffer(bytearray(state.read(name, start, stop)), dtype=torch.uint8)
                    tensor[start:stop].view(torch.uint8).copy_(data)
        if served.stage.fixed is not None:
            served.stage.fixed.exponent = note.exponent
        served.runner.weights_written()
        served.version = note.held.version
        return Kept(note.held, served, note.run, note.capacity)

    def remove(self) -> None:
        """Delete it: this process serves something by now. A disk that refuses is told of."""
        note, self._note = self._note, None
        if note is None or self._folder is None:
            return
        try:
            (self._folder / "held").unlink(missing_ok=True)
            self._generation(note).remove()
        except (OSError, CheckpointError) as error:
            log.warning("%s cannot be removed: %s", self._folder, error)

    def _generation(self, note: _Note) -> Generation:
        assert self._folder is not None, "there is something in it"
        return Generation.open(self._folder / f"version-{note.held.version:08d}")

    def _set_aside(self) -> str:
        assert self._folder is not None, "there is something in it"
        try:
            return f"; it is kept in {set_aside(self._folder).name}"
        except OSError as error:
            return f"; it cannot be set aside: {error.strerror}"


def _tensors(served: Served, with_gradient: bool) -> dict[str, Tensor]:
    """All that is to be stored, flat and in fp32, without a copy."""
    groups = served.stage.groups.values()
    tensors = {tensor_name(g.name, name): tensor for g in groups for name, tensor in g.tensors().items()}
    if with_gradient:
        for group in groups:
            reduced = served.reduced.get(group.name, group.summed)
            tensors[tensor_name(group.name, _REDUCED)] = reduced.detach().view(torch.float32)
    return {name: tensor.detach() for name, tensor in tensors.items()}
