"""Disks for tests: small ones that fill up, and that can be made read-only."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from swarmflow.compute.checkpoint import checkpoints

_BLOCK_BYTES = 1 << 16


@dataclass(frozen=True)
class SmallDisk:
    """A file system of its own at `path`."""

    path: Path

    def fill(self) -> None:
        """Nothing fits any more."""
        with (self.path / "filler").open("ab", buffering=0) as file:
            for size in (_BLOCK_BYTES, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def empty(self) -> None:
        """What `fill` wrote is gone."""
        (self.path / "filler").unlink()

    def remount(self, option: str) -> None:
        """`ro` or `rw`."""
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.path)], check=True)


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A disk in memory; the test is skipped where this user may not mount one."""
    path.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"this user may not mount a small disk: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open no file: what it opened before it may go on with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def flip_bit(path: Path, random: Random) -> None:
    """Flip a bit of a file, as a disk that forgets does."""
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def newest_files(state_folder: Path) -> list[Path]:
    """The stages' files of the newest version in a trainer's state folder."""
    newest = checkpoints(state_folder / "checkpoints")[0]
    return [newest.path / f"stage-{stage}.safetensors" for stage in newest.stages_held]
