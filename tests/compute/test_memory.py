"""Giving memory back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from swarmflow.compute.memory import Trimmer, resident_bytes

MEGA = 1_000_000


def test_the_resident_size_follows_what_is_held() -> None:
    before = resident_bytes()
    held = torch.ones(64 * MEGA // 4)
    assert resident_bytes() - before > 50 * MEGA
    del held


def test_a_process_within_its_means_is_left_alone() -> None:
    trimmer = Trimmer(resident_bytes() + 10 * MEGA, 0, 0)
    trimmer.after(0)
    assert trimmer.trims == 0


FREED_BELOW_THE_TOP = """
from swarmflow.compute.memory import Trimmer, resident_bytes
kept = [(bytearray(65536), bytearray(1024)) for _ in range(1000)]
base = resident_bytes()
small = [last for _, last in kept]
del kept
trimmer = Trimmer(0, 0, 0)
trimmer.after(0)
print(trimmer.trims, base - resident_bytes(), len(small))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_what_was_freed_below_the_top_of_the_heap_is_given_back() -> None:
    """In a process of its own: what lies free in the heap of this one depends on the tests before."""
    command = [sys.executable, "-c", FREED_BELOW_THE_TOP]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    trims, given_back_bytes, _ = map(int, done.stdout.split())
    assert trims == 1
    assert given_back_bytes > 40 * MEGA
