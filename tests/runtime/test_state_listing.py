"""What a process lists of a state that it has, for who copies it: from which donors, and how long one is waited for."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from swarmflow.compute.checkpoint import Checkpoint
from swarmflow.errors import NetworkError
from swarmflow.runtime.execution import state_transfer
from swarmflow.runtime.execution.state_transfer import Listing, copy_stage, list_state, serve_state
from swarmflow.runtime.operations.exporting import state_tensor_lengths
from tests.runtime.manifests import manifest
from tests.runtime.nodes import DEADLINE_S
from tests.runtime.test_copy_keeper import processes, serve, written

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    "listing", [b'{"tensors":{"\xff":1}}', b'{"tensors":{},"x":' + b"[" * 5000 + b"]" * 5000 + b"}", b"", b"{}"]
)
async def test_a_listing_that_does_not_decode_is_a_failure_of_its_donor(listing: bytes, tmp_path: Path) -> None:
    async with processes(tmp_path, 2) as (peer, reader):

        async def answer(*_: object) -> list[bytes]:
            return [listing]

        peer.session.requests.serve("state/list", answer)
        with pytest.raises(NetworkError):
            await list_state(reader.session.requests, peer.session.me, 0, 8, state_tensor_lengths(manifest(), 0))


async def test_a_file_is_read_and_hashed_once_whoever_asks_meanwhile(tmp_path: Path) -> None:
    of, listed, read = manifest(), list[int](), threading.Event()

    def listing(stage: int, version: int, file: str) -> Listing:
        listed.append(stage)
        if stage == 0 and not read.wait(DEADLINE_S):
            raise NetworkError("the first of them was never through")
        return Listing(state_tensor_lengths(of, stage))

    async with processes(tmp_path, 2) as (holder, reader):
        serve_state(holder.session.requests, listing, lambda *_: b"")

        async def ask(stage: int) -> Listing:
            of_stage = state_tensor_lengths(of, stage)
            return await list_state(reader.session.requests, holder.session.me, stage, 8, of_stage)

        *asked, last = [asyncio.create_task(ask(stage)) for stage in (0, 0, 0, 1)]
        await last  # it came after the others
        assert sorted(listed) == [0, 1]
        read.set()
        await asyncio.gather(*asked)
    assert sorted(listed) == [0, 0, 0, 1], "they are answered from what is open"


async def test_a_donor_that_lists_nothing_does_not_hold_up_a_copy_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = manifest()
    monkeypatch.setattr(state_transfer, "LIST_TIMEOUT_S", 0.5)
    checkpoint = written(of, tmp_path / "trainer", 8)
    async with processes(tmp_path, 3) as (good, silent, reader):
        serve(good, checkpoint)
        over = asyncio.Event()

        async def wait(*_: object) -> list[bytes]:
            await over.wait()
            return []

        silent.session.requests.serve("state/list", wait)
        fetched = Checkpoint.begin_copy(tmp_path / "fetched", 8, of.fingerprint, of.stages, checkpoint.roots)
        donors, elements = (silent.member, good.member), state_tensor_lengths(of, 1)
        copying = copy_stage(reader.session.requests, fetched, 1, donors, elements, checkpoint.roots[1])
        await asyncio.wait_for(copying, DEADLINE_S)
        assert fetched.stages_held == (1,)
        over.set()
