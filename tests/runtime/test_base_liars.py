"""Frozen weights come from whoever has them, over real connections: what is wrong is refused, whoever sends it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from swarmflow.compute.base_weights import PIECE_BYTES, base_leaves, base_root
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution.base_transfer import BaseSource, load_base, serve_base
from swarmflow.runtime.execution.session import Session
from tests.runtime.nodes import started
from tests.runtime.test_session import opened

SIZE = 5 * PIECE_BYTES + 1234
STAGE = 3


def content(seed: int) -> bytes:
    """Return the bytes of some weights."""
    generator = torch.Generator().manual_seed(seed)
    return bytes(torch.randint(256, (SIZE,), dtype=torch.uint8, generator=generator).numpy())


RIGHT = content(0)
LEAVES = base_leaves(SIZE, lambda start, stop: RIGHT[start:stop])
ROOT = base_root(LEAVES)


@dataclass
class BaseDonor:
    """Gives weights, and the hashes that it claims for them."""

    data: bytes
    claimed: bytes
    fails_from: int = SIZE
    asked: int = 0

    def leaves(self) -> bytes:
        return self.claimed

    def read(self, start: int, stop: int) -> bytes:
        self.asked += 1
        if start >= self.fails_from:
            raise NetworkError("they are not here any more")
        return self.data[start:stop]

    def serve(self, session: Session) -> None:
        def source(stage: int) -> BaseSource:
            if stage != STAGE:
                raise NetworkError(f"stage {stage} is not here")
            return self

        serve_base(session.requests, source, lambda stage: SIZE)


async def fetched(folder: Path, donors: list[BaseDonor], stage: int = STAGE) -> bytes:
    """Return what a newcomer loads from these donors."""
    async with started(folder, len(donors) + 1) as nodes:
        sessions = [await opened(node) for node in nodes]
        newcomer, found, seen = sessions[0], bytearray(SIZE), list[tuple[ProcessId, int, int]]()
        for donor, session, node in zip(donors, sessions[1:], nodes[1:], strict=True):
            donor.serve(session)
            newcomer.links.set_addresses(session.me, node.addresses())

        def write(start: int, data: memoryview) -> None:
            found[start : start + len(data)] = data

        def progressed(donor: ProcessId, received: int, total: int) -> None:
            seen.append((donor, received, total))

        try:
            known = [session.me for session in sessions[1:]]
            leaves = await load_base(newcomer.requests, known, stage, ROOT, SIZE, write, progressed)
            assert leaves == LEAVES
            assert max(received for _, received, _ in seen) == SIZE
        finally:
            for session in sessions:
                await session.close(0.0)
        return bytes(found)


@pytest.mark.asyncio
async def test_all_who_have_them_give_some(tmp_path: Path) -> None:
    donors = [BaseDonor(RIGHT, LEAVES), BaseDonor(RIGHT, LEAVES)]
    assert await fetched(tmp_path, donors) == RIGHT
    assert sum(donor.asked for donor in donors) == 6
    assert all(donor.asked for donor in donors)


@pytest.mark.asyncio
async def test_who_sends_wrong_pieces_or_loses_them_is_asked_no_more(tmp_path: Path) -> None:
    other = content(1)
    liar, bold = BaseDonor(other, LEAVES), BaseDonor(other, base_leaves(SIZE, lambda start, stop: other[start:stop]))
    leaver = BaseDonor(RIGHT, LEAVES, fails_from=2 * PIECE_BYTES)
    assert await fetched(tmp_path, [bold, liar, leaver, BaseDonor(RIGHT, LEAVES)]) == RIGHT
    assert liar.asked <= 3, "as many requests as are under way at a time"


@pytest.mark.asyncio
async def test_without_anyone_who_has_them_the_reasons_are_named(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=r"frozen weights of stage 3 could not be loaded.*not those of the run"):
        await fetched(tmp_path, [BaseDonor(content(1), LEAVES)])
    with pytest.raises(NetworkError, match="stage 2 is not here"):
        await fetched(tmp_path, [BaseDonor(RIGHT, LEAVES)], stage=2)
    with pytest.raises(NetworkError, match="has other frozen weights than the run"):
        await fetched(tmp_path, [BaseDonor(RIGHT, LEAVES[32:])])
