"""What several tests of computing are run with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=NO_CUDA)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device that a peer computes on: its updates have the same bits on all of them."""
    return torch.device(request.param)
