"""Keeps the memory of a process near what its tensors need, by giving freed pages back to the system in time."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

SLACK = 1.04  # of what the tensors need, before pages are given back

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Memory that this process has in RAM; 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


class Trimmer:
    """Trims the C library's heap whenever the process is larger than its tensors explain.

    Torch asks for aligned memory, and glibc's heap cannot use a hole of the right size for an aligned request: with
    some microbatches held, a quarter to a third more stays taken than is in use. Getting each tensor from the system
    instead (a low M_MMAP_THRESHOLD) costs 30% of the speed in page faults, trimming next to nothing.

    base_bytes: the process without its stage. fixed_bytes: weights, gradients and optimizer. each_bytes: the
    activations of a microbatch.
    """

    def __init__(self, base_bytes: int, fixed_bytes: int, each_bytes: int) -> None:
        self.base_bytes = base_bytes
        self.fixed_bytes = fixed_bytes
        self.each_bytes = each_bytes
        self.trims = 0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, other C libraries do not

    def trim(self) -> None:
        """Give back what is free."""
        if self._trim is not None:
            self._trim(0)
            self.trims += 1

    def after(self, held: int) -> None:
        """To be called after a microbatch was computed, with the number of those that are held now."""
        wanted_bytes = self.base_bytes + SLACK * (self.fixed_bytes + (held + 1) * self.each_bytes)
        if resident_bytes() > wanted_bytes:
            self.trim()
