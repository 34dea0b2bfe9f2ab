"""The frozen weights that a peer has fetched, in its state folder: after a restart they are read from there."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from torch import Tensor

from swarmflow.compute.base_weights import HASH_BYTES, base_root, piece_ranges, read_base
from swarmflow.compute.state_root import leaf_of
from swarmflow.errors import CorruptError, NoRoomError
from swarmflow.files import readable_size, replacing, require_room

log = logging.getLogger("swarmflow")

STAGES_MAX = 2  # whose frozen weights are kept: a peer that was moved may come back
_AT_A_TIME = 64  # pieces: between two lots a task can be cancelled, and memory be freed

Write = Callable[[int, memoryview], None]
"""(first byte, bytes): sets bytes of a stage's frozen weights; called in a thread."""


class KeptBase:
    """FOLDER/ROOT for each stage: the hashes of all pieces, then the pieces. Both are checked as they are read."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder  # None: nothing is kept

    async def read(self, root: str, total_bytes: int, write: Write) -> bytes | None:
        """Set the frozen weights from the disk; return the hashes of their pieces. None: they are not there, or wrong.

        What is wrong is removed: whoever has the weights gives them again.
        """
        path = None if self._folder is None else self._folder / root
        if path is None or not path.exists():
            return None
        pieces = piece_ranges(total_bytes)
        try:
            with path.open("rb") as file:
                leaves = file.read(HASH_BYTES * len(pieces))
                if base_root(leaves) != root:
                    raise CorruptError("their hashes are wrong")
                for first in range(0, len(pieces), _AT_A_TIME):
                    await asyncio.to_thread(_copy, file, leaves, first, pieces[first : first + _AT_A_TIME], write)
            os.utime(path)
        except (OSError, CorruptError) as error:
            log.warning("the frozen weights in %s cannot be used, and are fetched again: %s", path, error)
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        log.info("the frozen weights are in %s: %s need not be fetched", path, readable_size(total_bytes))
        return leaves

    async def keep(self, root: str, leaves: bytes, base: weakref.ref[Tensor]) -> None:
        """Write a stage's frozen weights to the disk, unless it has no room. base: when it is freed, that ends."""
        tensor = base()
        if self._folder is None or tensor is None:
            return
        total_bytes, folder = tensor.numel(), self._folder
        del tensor
        pieces = piece_ranges(total_bytes)
        try:
            folder.mkdir(exist_ok=True)
            for draft in folder.glob("*.tmp"):  # of a process that was killed
                draft.unlink()
            require_room("a copy of the frozen weights", folder, len(leaves) + total_bytes)
            with replacing(folder / root) as file:
                await asyncio.to_thread(file.write, leaves)
                for first in range(0, len(pieces), _AT_A_TIME):
                    await asyncio.to_thread(_append, file, base, pieces[first : first + _AT_A_TIME])
            await asyncio.to_thread(_remove_oldest, folder)
        except _FreedError:
            log.debug("the frozen weights are not kept: this stage is not served any more")
        except (OSError, NoRoomError) as error:
            log.warning("the frozen weights are not kept, and will be fetched again after a restart: %s", error)


class _FreedError(Exception):
    """The stage is not in memory any more."""


def _copy(file: IO[bytes], leaves: bytes, first: int, lot: Sequence[tuple[int, int]], write: Write) -> None:
    """Set some pieces from the file. Raises OSError, and CorruptError for one that is not what its hash says."""
    for number, (start, stop) in enumerate(lot, first):
        data = file.read(stop - start)
        if leaf_of([data]) != leaves[number * HASH_BYTES : (number + 1) * HASH_BYTES]:
            raise CorruptError(f"piece {number} is damaged")
        write(start, memoryview(data))


def _append(file: IO[bytes], base: weakref.ref[Tensor], lot: Sequence[tuple[int, int]]) -> None:
    tensor = base()
    if tensor is None:
        raise _FreedError
    for start, stop in lot:
        file.write(read_base(tensor, start, stop))


def _remove_oldest(folder: Path) -> None:
    """Leave those that were used last."""
    found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[STAGES_MAX:]:
        path.unlink()
