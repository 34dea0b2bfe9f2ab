"""The frozen weights that a peer has fetched, in its state folder: after a restart they are read from there."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from torch import Tensor

from swarmflow.compute.base_weights import HASH_BYTES, base_root, piece_ranges, read_base
from swarmflow.compute.state_root import leaf_of
from swarmflow.errors import CorruptError, NoRoomError
from swarmflow.files import readable_size, replacing, require_room, sync_to_disk

log = logging.getLogger("swarmflow")

STAGES_MAX = 2  # whose frozen weights are kept: a peer that was moved may come back
SPARE = 2  # times their bytes have to be free: what else lies in a state folder cannot be fetched again
_ROOT = re.compile("[0-9a-f]{64}")
_AT_A_TIME = 64  # pieces: between two lots a task can be cancelled, and memory be freed

Write = Callable[[int, memoryview], None]
"""(first byte, bytes): sets bytes of a stage's frozen weights; called in a thread."""


class KeptBase:
    """FOLDER/ROOT for each stage: the hashes of all pieces, then the pieces. Both are checked as they are read."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder  # None: nothing is kept

    async def read(
        self, root: str, total_bytes: int, write: Write, on_progress: Callable[[int, int], None]
    ) -> bytes | None:
        """Set the frozen weights from the disk; return the hashes of their pieces. None: they are not there, or wrong.

        What is wrong is removed: whoever has the weights gives them again. on_progress: is told bytes read, and all.
        """
        if self._folder is None:
            return None
        path, pieces = self._folder / root, piece_ranges(total_bytes)
        try:
            with path.open("rb") as file:
                leaves = file.read(HASH_BYTES * len(pieces))
                if base_root(leaves) != root:
                    raise CorruptError("their hashes are wrong")
                for first in range(0, len(pieces), _AT_A_TIME):
                    lot = pieces[first : first + _AT_A_TIME]
                    await asyncio.to_thread(_copy, file, leaves, first, lot, write)
                    on_progress(lot[-1][1], total_bytes)
        except FileNotFoundError:
            return None
        except (OSError, CorruptError) as error:
            log.warning("the frozen weights in %s cannot be used, and are fetched again: %s", path, error)
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        with suppress(OSError):
            os.utime(path)  # it was used last
        log.info("the frozen weights are in %s: %s need not be fetched", path, readable_size(total_bytes))
        return leaves

    async def keep(self, root: str, leaves: bytes, base: weakref.ref[Tensor]) -> None:
        """Write a stage's frozen weights to the disk, if they are not there and there is room.

        base: when it is freed, that ends.
        """
        tensor = base()
        if self._folder is None or tensor is None:
            return
        total_bytes, path = tensor.numel(), self._folder / root
        del tensor
        pieces = piece_ranges(total_bytes)
        try:
            if await asyncio.to_thread(_is_kept, path):
                return
            require_room("to keep frozen weights, with as much left free,", path.parent, SPARE * total_bytes)
            with replacing(path) as file:
                await asyncio.to_thread(file.write, leaves)
                for first in range(0, len(pieces), _AT_A_TIME):
                    await asyncio.to_thread(_append, file, base, pieces[first : first + _AT_A_TIME])
                await asyncio.to_thread(_sync, file)  # which may take long, and nothing is left to write after it
        except _FreedError:
            log.debug("the frozen weights are not kept: this stage is not served any more")
        except (OSError, NoRoomError) as error:
            log.warning("the frozen weights will be fetched again after a restart: %s", error)


class _FreedError(Exception):
    """The stage is not in memory any more."""


def _is_kept(path: Path) -> bool:
    """Return whether the file is there; else make its folder, and room: drafts and what was used longest ago go.

    Raises OSError.
    """
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        return True
    for draft in path.parent.glob("*.tmp"):  # of a process that was killed
        draft.unlink()
    kept = [other for other in path.parent.iterdir() if _ROOT.fullmatch(other.name)]
    for other in sorted(kept, key=lambda other: other.stat().st_mtime, reverse=True)[STAGES_MAX - 1 :]:
        other.unlink()
    return False


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


def _sync(file: IO[bytes]) -> None:
    file.flush()
    sync_to_disk(file.fileno())
