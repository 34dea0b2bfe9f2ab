"""What the tests of swarms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from swarmflow.local.forkserver import ForkServer
from swarmflow.local.swarm import environment


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Starts processes of one thread without importing torch anew for each: most of a short swarm's time."""
    with ForkServer(environment(threads=1)) as server:
        yield server
