"""Giving memory back to the system."""

from __future__ import annotations

import platform

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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_what_was_freed_below_the_top_of_the_heap_is_given_back() -> None:
    kept = [(torch.ones(16 * 1024), torch.ones(16)) for _ in range(1000)]
    small = [last for _, last in kept]
    base = resident_bytes()
    del kept
    trimmer = Trimmer(base - 40 * MEGA, 0, 0)
    trimmer.after(0)
    assert trimmer.trims == 1
    assert base - resident_bytes() > 40 * MEGA
    assert len(small) == 1000
