"""The compiled kernels of an installation: found, and called for parts of tensors by as many threads as torch has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec


@lru_cache
def library(name: str) -> ctypes.CDLL | None:
    """Return the library `swarmflow.compute.NAME`; None: there was no compiler when swarmflow was installed."""
    found = find_spec(f"swarmflow.compute.{name}")
    return None if found is None or found.origin is None else ctypes.CDLL(found.origin)


def in_parts(count: int, threads: int, call: Callable[[int, int], None]) -> None:
    """Call with the first of `count` things and the number of them for each part, one for each thread.

    A kernel lets other threads of Python run.
    """
    if threads <= 1:
        call(0, count)
        return
    size = -(-count // threads)
    starts = range(0, count, size)
    list(_threads(threads).map(call, starts, [min(size, count - start) for start in starts]))


@lru_cache  # kernels of unlike sizes may ask for unlike numbers, in turn
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="kernel")
