"""Frozen weights are fetched from processes of the same host first, and from others where those fail."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from swarmflow.compute.base_weights import PIECE_BYTES, base_leaves, base_root
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.base_transfer import load_base, serve_base
from tests.runtime.test_copy_keeper import Process, processes

DATA = random.Random(5).randbytes(3 * PIECE_BYTES + 100)


@dataclass
class Source:
    """The bytes, as one process has them. left: pieces that it gives before it has none any more."""

    name: str
    asked: Counter[str]
    left: int

    def leaves(self) -> bytes:
        return base_leaves(len(DATA), lambda start, stop: DATA[start:stop])

    def read(self, start: int, stop: int) -> bytes:
        self.asked[self.name] += 1
        if self.asked[self.name] > self.left:
            raise NetworkError("they are not here any more")
        return DATA[start:stop]


@pytest.mark.asyncio
@pytest.mark.parametrize("left", [4, 2])
async def test_those_of_the_same_host_are_asked_alone_as_long_as_that_goes_well(left: int, tmp_path: Path) -> None:
    asked, loaded = Counter[str](), bytearray(len(DATA))
    async with processes(tmp_path, 3) as (reader, near, far):

        def serve(process: Process, source: Source) -> None:
            serve_base(process.session.requests, lambda stage: source, lambda stage: len(DATA))

        def write(start: int, data: memoryview) -> None:
            loaded[start : start + len(data)] = data

        serve(near, Source("near", asked, left))
        serve(far, Source("far", asked, 4))
        leaves = base_leaves(len(DATA), lambda start, stop: DATA[start:stop])
        found = await load_base(
            reader.session.requests,
            (far.session.me, near.session.me),
            *(0, base_root(leaves), len(DATA), write, lambda *_: None),
            near=(near.session.me,),
        )
        assert (found, bytes(loaded)) == (leaves, DATA)
        assert asked["near"] >= left
        assert (asked["far"] > 0) == (left < 4)
