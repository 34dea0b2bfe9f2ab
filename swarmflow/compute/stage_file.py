"""A stage's state in a safetensors file: verified by its root, and read by ranges."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

from swarmflow.compute.state_root import item_bytes, leaves_of, root_of
from swarmflow.compute.tensorfile import read_header, unreadable
from swarmflow.errors import CheckpointError, CorruptError


class StageFile:
    """A stage's file, open for reading by ranges. elements: tensor name -> number of elements.

    The constructor reads the whole file once. It raises CorruptError when root, size or header is wrong, and
    CheckpointError when the file cannot be read now. expected: the root that the file has to have; empty: any.
    """

    def __init__(self, path: Path, expected: str = "") -> None:
        self.path = path
        shapes, at = read_header(path)
        if any(len(shape) != 1 for shape in shapes.values()):
            raise CorruptError(f"{path} does not hold flat tensors")
        self.elements = {name: shape[0] for name, shape in shapes.items()}
        self._starts: dict[str, int] = {}  # the first byte of each tensor
        for name, count in self.elements.items():
            self._starts[name] = at
            at += item_bytes(name) * count
        self._reading = threading.Lock()  # `close` frees the descriptor: a read at that moment could be of another file
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise unreadable(path, error) from error
        try:
            self.root = root_of(leaves_of(self.elements, self.read))
            if expected not in ("", self.root):
                raise CorruptError(f"{path} is corrupt: its root is not the one in the manifest")
        except CheckpointError:
            self.close()
            raise

    def __enter__(self) -> StageFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with self._reading:
            self._file.close()

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return elements start to stop of a tensor, as little-endian bytes. Safe to call from several threads.

        Raises CheckpointError for elements that the file lacks or that cannot be read, and when it was closed.
        """
        if name not in self.elements or not 0 <= start <= stop <= self.elements[name]:
            raise CheckpointError(f"{self.path} has no elements {start} to {stop} of {name}")
        size = item_bytes(name)
        at, wanted = self._starts[name] + size * start, size * (stop - start)
        with self._reading:
            if self._file.closed:
                raise CheckpointError(f"{self.path} was closed: a newer version is here")
            try:
                data = os.pread(self._file.fileno(), wanted, at)
            except OSError as error:
                raise unreadable(self.path, error) from error
        if len(data) != wanted:
            raise CheckpointError(f"{self.path} was cut short while it was read")
        return data
