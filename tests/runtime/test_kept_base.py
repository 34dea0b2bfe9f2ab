"""Frozen weights on a peer's disk: read again as they were written, and never anything else."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from peers.kept_base import STAGES_MAX, KeptBase
from swarmflow.compute.base_weights import PIECE_BYTES, base_leaves, base_root, read_base
from tests.disks import flip_bit, small_disk

pytestmark = pytest.mark.asyncio

SIZE = 70 * PIECE_BYTES + 1234  # more than are written at a time


def weights(seed: int, size: int = SIZE) -> tuple[str, bytes, Tensor]:
    """Return some with their root and hashes."""
    base = torch.frombuffer(bytearray(np.random.default_rng(seed).bytes(size)), dtype=torch.uint8)
    leaves = base_leaves(size, lambda start, stop: read_base(base, start, stop))
    return base_root(leaves), leaves, base


async def read(folder: Path, root: str, size: int = SIZE) -> tuple[bytes | None, bytes]:
    """Return the hashes, and what was set."""
    found = bytearray(size)

    def write(start: int, data: memoryview) -> None:
        found[start : start + len(data)] = data

    told: list[tuple[int, int]] = []
    leaves = await KeptBase(folder).read(root, size, write, lambda *bytes_read: told.append(bytes_read))
    assert leaves is None or told[-1] == (size, size)
    return leaves, bytes(found)


async def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    root, leaves, base = weights(0)
    await KeptBase(tmp_path / "frozen").keep(root, leaves, weakref.ref(base))
    assert await read(tmp_path / "frozen", root) == (leaves, bytes(base.numpy()))
    other, _, _ = weights(1)
    assert (await read(tmp_path / "frozen", other))[0] is None
    await KeptBase(None).keep(root, leaves, weakref.ref(base))
    nothing = await KeptBase(None).read(root, SIZE, lambda start, data: None, lambda *_: None)
    assert nothing is None, "without a folder nothing is kept"


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_damaged_is_removed_and_not_used(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, leaves, base = weights(2)
    await KeptBase(tmp_path).keep(root, leaves, weakref.ref(base))
    file, random = tmp_path / root, Random(seed)
    if seed % 2:
        flip_bit(file, random)
    else:
        os.truncate(file, random.randrange(file.stat().st_size))
    assert (await read(tmp_path, root))[0] is None
    assert not file.exists()
    assert "are fetched again" in caplog.text


async def test_those_that_were_used_last_stay(tmp_path: Path) -> None:
    roots = []
    for seed in range(STAGES_MAX + 1):
        root, leaves, base = weights(seed, 1000)
        roots.append(root)
        await KeptBase(tmp_path).keep(root, leaves, weakref.ref(base))
        os.utime(tmp_path / root, (seed, seed))
        if seed == 1:
            assert (await read(tmp_path, roots[0], 1000))[0] is not None
    assert {path.name for path in tmp_path.iterdir()} == {roots[0], roots[2]}


async def test_what_was_used_longest_ago_makes_room_for_another_and_other_files_stay(tmp_path: Path) -> None:
    sizes = 3_000_000, 3_000_000, 4_000_000
    with small_disk(tmp_path / "disk", 12_000_000) as disk:
        (disk.path / "note").write_bytes(b"of somebody else")
        roots = []
        for seed, size in enumerate(sizes):
            root, leaves, base = weights(seed, size)
            roots.append(root)
            await KeptBase(disk.path).keep(root, leaves, weakref.ref(base))
            os.utime(disk.path / root, (seed, seed))
        assert {path.name for path in disk.path.iterdir()} == {"note", *roots[1:]}
        written = (disk.path / roots[2]).stat()
        root, leaves, base = weights(2, sizes[2])
        await KeptBase(disk.path).keep(root, leaves, weakref.ref(base))
        assert (disk.path / roots[2]).stat().st_ino == written.st_ino, "it is there already"


async def test_a_stage_that_is_freed_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    root, leaves, base = weights(3)
    (tmp_path / f"{root}.0123.tmp").write_bytes(b"of a process that was killed")
    keeping = asyncio.create_task(KeptBase(tmp_path).keep(root, leaves, weakref.ref(base)))
    await asyncio.sleep(0)  # it has begun
    del base
    await keeping
    assert list(tmp_path.iterdir()) == []


async def test_a_full_disk_costs_the_copy_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, leaves, base = weights(4)
    with small_disk(tmp_path / "disk", SIZE // 2) as disk, caplog.at_level(logging.WARNING):
        await KeptBase(disk.path).keep(root, leaves, weakref.ref(base))
        assert list(disk.path.iterdir()) == []
    assert "needs 146.8 MB in" in caplog.text
    assert "will be fetched again after a restart" in caplog.text
