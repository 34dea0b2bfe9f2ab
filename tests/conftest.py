"""What every test shares."""

from __future__ import annotations

import os

import pytest

# Set before torch or OpenMP is loaded: the tests start many processes, and more threads than cores only slow them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What `--dist loadgroup` keeps together: all swarms, so that no two run at once; else the tests of a file."""
    for item in items:
        group = "swarm" if item.get_closest_marker("swarm") else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
