"""Settings that every test shares."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

# Set before torch or OpenMP is loaded: the tests start many processes, and more threads than cores only slow them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Give each test the log as it found it: a command that runs in the test's process sets it up for itself."""
    log = logging.getLogger("swarmflow")
    handlers, level, propagate = list(log.handlers), log.level, log.propagate
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)
