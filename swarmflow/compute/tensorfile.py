"""A safetensors file of tensors that is written chunk by chunk, so that no tensor is ever whole in memory."""

from __future__ import annotations

import json
import math
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from swarmflow.compute.state_root import item_bytes
from swarmflow.errors import CheckpointError, CorruptError
from swarmflow.files import NO_ROOM_ERRNOS, no_room, sync_folder, sync_to_disk

HEADER_BYTES_MAX = 1 << 24
ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1}  # of a number, by safetensors' name of its dtype


def header_bytes(
    shapes: Mapping[str, tuple[int, ...]],
    metadata: Mapping[str, str] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> bytes:
    """The start of a safetensors file that holds these tensors in this order, without gaps.

    dtypes: of each of them, as safetensors names it; None: those of a stage's state, which their names tell.
    """
    fields: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, shape in shapes.items():
        stored = _dtype_of(name, dtypes)
        stop = at + ITEM_BYTES[stored] * math.prod(shape)
        fields[name] = {"dtype": stored, "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def file_bytes(elements: Mapping[str, int]) -> int:
    """Size of the file of these flat tensors of a stage's state: name -> number of elements."""
    head = header_bytes({name: (count,) for name, count in elements.items()})
    return len(head) + sum(item_bytes(name) * count for name, count in elements.items())


def _dtype_of(name: str, dtypes: Mapping[str, str] | None) -> str:
    if dtypes is not None:
        return dtypes[name]
    return "F32" if item_bytes(name) == ITEM_BYTES["F32"] else "U8"


class TensorFileWriter:
    """Writes beside `path` and moves into place when finished; an unfinished file is removed by `abandon`.

    dtypes: as in `header_bytes`. Bytes may come in any order and more than once; `missing` says from
    where on they are not there yet. Raises CheckpointError when the disk is full or refuses.
    """

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, tuple[int, ...]],
        metadata: Mapping[str, str] | None = None,
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self._items = {name: ITEM_BYTES[_dtype_of(name, dtypes)] for name in shapes}
        self._using = threading.RLock()  # closed meanwhile, its descriptor could be another file's when it is written
        self._part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        self._spans: list[tuple[int, int]] = []
        self._start: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        head = header_bytes(shapes, metadata, dtypes)
        at = len(head)
        for name, shape in shapes.items():
            self._start[name], self._bytes[name] = at, self._items[name] * math.prod(shape)
            at += self._bytes[name]
        self.size_bytes = at
        self._spans.append((0, len(head)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._part.open("w+b", buffering=0)
        except OSError as error:
            raise self._refused(error) from error
        self._guard(lambda: _write_at(self._handle(), memoryview(head), 0))

    def write(self, name: str, start: int, data: bytes | bytearray | memoryview) -> None:
        """Writes elements from `start` on of one tensor, as little-endian bytes of its dtype."""
        view, item = memoryview(data).cast("B"), self._items[name]
        if start < 0 or len(view) % item or item * start + len(view) > self._bytes[name]:
            raise ValueError(f"{len(view)} bytes at element {start} do not lie in {name}")
        at = self._start[name] + item * start
        with self._using:
            self._guard(lambda: _write_at(self._handle(), view, at))
            self._spans = _merged([*self._spans, (at, at + len(view))])

    def missing(self) -> tuple[str, int] | None:
        """The first (tensor, element) that was not written yet; None when all is there."""
        reached = self._spans[0][1]
        for name, start in self._start.items():
            if reached < start + self._bytes[name]:
                return name, (reached - start) // self._items[name]
        return None

    def finish(self) -> None:
        """Makes the file durable and visible under its path."""
        hole = self.missing()
        if hole is not None:
            raise CheckpointError(f"{self.path} is incomplete: {hole[0]} lacks element {hole[1]}")
        self._guard(self._sync)
        with self._using:
            self._file.close()
        self._guard(lambda: os.replace(self._part, self.path))
        self._guard(lambda: sync_folder(self.path.parent))

    def abandon(self) -> None:
        """Closes and removes what was written so far; nothing happens after `finish`."""
        with self._using:
            self._file.close()
        with suppress(OSError):  # the disk that refused to write may refuse this too
            self._part.unlink(missing_ok=True)

    def _handle(self) -> int:
        if self._file.closed:
            raise CheckpointError(f"{self.path} is not written any more: it was given up")
        return self._file.fileno()

    def _sync(self) -> None:
        """Bring the file to the disk, without the lock: it may take long, and `abandon` is not to wait for it."""
        with self._using:
            handle = os.dup(self._handle())
        try:
            sync_to_disk(handle)
        finally:
            os.close(handle)

    def _guard(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self.abandon()
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> CheckpointError:
        if error.errno in NO_ROOM_ERRNOS:
            return no_room(self.path.name, self.path.parent, self.size_bytes, str(error.strerror))
        return CheckpointError(f"{self.path} cannot be written: {error.strerror or error}")


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """The error of a file that is not there any more, or that the system does not give now."""
    if isinstance(error, FileNotFoundError):
        return CorruptError(f"{path} is missing")
    return CheckpointError(f"{path} cannot be read now: {error.strerror or error}")


def read_header(path: Path) -> tuple[dict[str, tuple[int, ...]], int]:
    """(tensor -> shape, first byte of the data) of a stage's file that `TensorFileWriter` wrote.

    The bytes must be exactly those that the writer makes: raises CorruptError otherwise, also for a wrong size;
    CheckpointError where it cannot be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(HEADER_BYTES_MAX, size):
                raise ValueError("its header is too long")
            text = file.read(length)
        fields = json.loads(text)
        metadata = fields.pop("__metadata__", None)
        shapes = {name: tuple(int(n) for n in field["shape"]) for name, field in fields.items()}
        expected = header_bytes(shapes, metadata)
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{path} is corrupt: {error}") from error
    data_bytes = sum(item_bytes(name) * math.prod(shape) for name, shape in shapes.items())
    if length.to_bytes(8, "little") + text != expected or size != len(expected) + data_bytes:
        raise CorruptError(f"{path} is corrupt or cut short: {size} bytes, {len(expected) + data_bytes} expected")
    return shapes, len(expected)


def _write_at(handle: int, view: memoryview, at: int) -> None:
    while view:
        written = os.pwrite(handle, view, at)
        view, at = view[written:], at + written


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged
