"""Frozen weights come from processes of the same host first, and from any that have the right ones and answer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from swarmflow.compute.base_weights import PIECE_BYTES, base_leaves, base_root
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.base_transfer import LEAVES, PIECE, load_base, serve_base
from swarmflow.runtime.transport.requests import BUSY, Arguments
from tests.runtime.test_copy_keeper import Process, processes

DATA = random.Random(5).randbytes(3 * PIECE_BYTES + 100)


@dataclass
class Source:
    """The bytes, as one process has them. left: pieces that it gives before it has none any more."""

    name: str
    asked: Counter[str]
    left: int
    data: bytes = DATA

    def leaves(self) -> bytes:
        return base_leaves(len(self.data), lambda start, stop: self.data[start:stop])

    def read(self, start: int, stop: int) -> bytes:
        self.asked[self.name] += 1
        if self.asked[self.name] > self.left:
            raise NetworkError("they are not here any more")
        return self.data[start:stop]


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


async def always_busy(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
    raise NetworkError(BUSY)


async def loaded_by(reader: Process, *donors: Process) -> bytes:
    """Return what was loaded, without patience for donors that are busy."""
    loaded = bytearray(len(DATA))
    root = base_root(base_leaves(len(DATA), lambda start, stop: DATA[start:stop]))

    def write(start: int, data: memoryview) -> None:
        loaded[start : start + len(data)] = data

    names, size = [donor.session.me for donor in donors], len(DATA)
    await load_base(reader.session.requests, names, 0, root, size, write, lambda *_: None, patience_s=0.0)
    return bytes(loaded)


@pytest.mark.asyncio
async def test_a_donor_that_is_always_busy_or_has_others_is_left_for_the_next_one(tmp_path: Path) -> None:
    async with processes(tmp_path, 4) as (reader, busy, other, able):
        sources = [Source("", Counter[str](), 1000, data) for data in (DATA, DATA[::-1], DATA)]
        for donor, source in zip((busy, other, able), sources, strict=True):
            serve_base(donor.session.requests, lambda stage, source=source: source, lambda stage: len(DATA))  # type: ignore[misc]
        for topic in (PIECE, LEAVES):  # first with pieces alone
            busy.session.requests.serve(topic, always_busy)
            assert await loaded_by(reader, busy, other, able) == DATA
            with pytest.raises(NetworkError, match=r"frozen weights of stage 0 could not be loaded: .*busy; ask again"):
                await loaded_by(reader, busy)
        with pytest.raises(NetworkError, match="has other frozen weights than the run"):
            await loaded_by(reader, other)
