"""Settings that every test shares."""

from __future__ import annotations

import os

# Set before torch or OpenMP is loaded: the tests start many processes, and more threads than cores only slow them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
