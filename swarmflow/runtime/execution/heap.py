"""The C library's heap of a process that computes: settings that it can be given at its start alone."""

from __future__ import annotations

import os
import sys

VARIABLE = "GLIBC_TUNABLES"
# Torch asks for aligned memory, and glibc's heap cannot use a hole of just the right size for an aligned request: holes
# are only of use when they grow together. Small blocks that were freed but are kept apart (tcache, fast bins) hold them
# asunder. Large tensors from the system and back, or a heap that is trimmed, cost a sixth of the speed in page faults.
# Measured in docs/decisions/memory.md.
TUNABLES = {
    "glibc.malloc.tcache_count": 0,
    "glibc.malloc.mxfast": 0,
    "glibc.malloc.arena_max": 1,
    "glibc.malloc.mmap_threshold": 32 << 20,
    "glibc.malloc.trim_threshold": 1 << 30,
}


def restart_with_heap_settings() -> None:
    """Begin this process anew, under the same id, with a heap that suits tensors; to be called before torch is loaded.

    Nothing happens where the C library is not glibc, or where the person has chosen tunables already.
    """
    if VARIABLE in os.environ or not _is_glibc():
        return
    os.environ |= heap_environment()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def heap_environment() -> dict[str, str]:
    """What a process has in its environment that was started with these settings."""
    return {VARIABLE: ":".join(f"{name}={value}" for name, value in TUNABLES.items())}


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except ValueError:  # a C library that does not know the name
        return False
