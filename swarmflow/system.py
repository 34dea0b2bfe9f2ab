"""What the operating system reports of this machine and of its processes, on Linux and macOS alike."""

from __future__ import annotations

import os

import psutil

from swarmflow.cgroups import memory_left


def available_memory_bytes() -> int:
    """Return the memory that this process may still take without swapping, and within its container, in bytes."""
    return min([int(psutil.virtual_memory().available), *memory_left()])


def resident_bytes(process: int | None = None) -> int:
    """Return the resident memory of a process, in bytes; 0 where it has ended or may not be read.

    process: its ID; None: this process.
    """
    try:
        return int(psutil.Process(process).memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def usable_cores() -> int:
    """Return the number of cores that this process may run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):  # macOS has no affinities
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1
